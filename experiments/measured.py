"""Write the table of the main results anew from the grid's rows, so that no figure in it is typed by hand.

$ python experiments/measured.py            # docs/measured.md, between its two marks
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpx.compare.aggregate import compare, question
from mpx.compare.collect import newest
from mpx.compare.comparison import Group, Row, Speedup, Verdict
from mpx.compare.fastest import fastest_to_train
from mpx.compare.run import Run
from mpx.compare.table import read_results

HERE = Path(__file__).parent
sys.path.append(str(HERE))
from collecting import Arguments, fill, markdown  # noqa: E402

PAGE, GRID = HERE.parent / "docs" / "measured.md", HERE / "grid"
TASKS = {
    ("resnet18", "cifar10"): "ResNet-18, CIFAR-10", ("resnet18", "fashion_mnist"): "ResNet-18, Fashion-MNIST",
    ("bert_small", "sst2"): "BERT-small, SST-2", ("lstm", "sst2"): "LSTM, SST-2",
}  # fmt: skip
MARGIN, CONFIDENCE = 0.005, 0.95
DENSE_FP16, PRUNED = {"control": "amp-dense"}, ("amp", "2of4")
FORMATS = {"fp32": "FP32", "tf32": "TF32", "amp": "FP16", "amp_bf16": "BF16"}
Groups = dict[tuple[str, str], Group]


def main() -> None:
    Arguments().parse_args()
    fill(PAGE, {"measured": measured()})


def measured() -> str:
    """The table of docs/measured.md."""
    runs, no_restart = (newest(read_results(GRID / name))[0] for name in ("results.csv", "no_restart.csv"))
    # a single test of all seeds, for comparisons that no plan named
    unplanned = [replace(run, looks=None) for run in runs]
    pruned = [run for run in unplanned if (run.precision, run.sparsity) == PRUNED]
    grid, in_fp16 = groups(runs, margin=MARGIN), groups(unplanned, **DENSE_FP16)
    to_no_restart = groups(pruned + no_restart, **DENSE_FP16)
    cells: dict[str, Callable[[tuple[str, str]], str]] = {
        "GPU; seeds": lambda task: setup(grid[task]),
        "test accuracy in FP32": lambda task: f"{100 * grid[task].rows[0].metric.mean:.1f} %",
        "no loss on this test set": lambda task: without_loss(grid[task]),
        "no loss on new samples": lambda task: without_loss_anywhere(grid[task]),
        "named by the verdict": lambda task: named(fastest(grid[task])),
        "its throughput ÷ FP32's": lambda task: f"{fastest(grid[task]).speedup.ratio:.2f}",
        "FP32's time to train ÷ its": lambda task: ratio(fastest(grid[task]).sooner),
        "points that 2:4 changes in FP16, not planned beforehand": lambda task: points(in_fp16[task]),
        "the same to dense runs without the rise": lambda task: points(to_no_restart[task]),
    }
    return markdown(["", *TASKS.values()], [[name, *map(cell, TASKS)] for name, cell in cells.items()])


def groups(runs: list[Run], **how: Any) -> Groups:
    comparison = compare(runs, question(**how), study="grid", folder=GRID)
    return {(group.model, group.data): group for group in comparison.groups}


def fastest(group: Group) -> Row:
    best = fastest_to_train(group, CONFIDENCE).best
    assert best is not None
    return best


def named(row: Row) -> str:
    run = row.runs[0]
    return FORMATS[run.precision] + ("" if run.sparsity == "dense" else ", 2:4")


def setup(group: Group) -> str:
    """GPU and number of seeds."""
    seeds = sorted({len(row.runs) for row in group.rows[1:]})
    return f"{group.rows[0].runs[0].device.split()[1]}; {' or '.join(map(str, seeds))}"


def without_loss(group: Group) -> str:
    others = group.rows[1:]
    return f"{sum(row.decision.verdict is Verdict.NO_LOSS for row in others)} of {len(others)} settings"


def without_loss_anywhere(group: Group) -> str:
    lows = [row.decision.population.low for row in group.rows[1:]]
    shown = sum(low is not None and low > -MARGIN for low in lows)
    winner = (fastest(group).decision.population.low or -1) > -MARGIN
    return f"{shown} of {len(lows)}" + ("" if winner else ", not the one named")


def ratio(speedup: Speedup) -> str:
    return f"{speedup.ratio:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"


def points(group: Group) -> str:
    (row,) = (row for row in group.rows if (row.runs[0].precision, row.runs[0].sparsity) == PRUNED)
    change = row.decision
    text = f"{100 * change.difference:+.2f} ({100 * change.low:+.2f} to {100 * change.high:+.2f})"
    return text.replace("-", "−")


if __name__ == "__main__":
    main()
