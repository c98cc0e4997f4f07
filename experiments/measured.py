"""Write the main results anew from the committed tables, so that no figure in them is typed by hand.

$ python experiments/measured.py            # docs/measured.md and README.md, between their two marks
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from mpx.compare.aggregate import compare, question
from mpx.compare.collect import newest
from mpx.compare.comparison import Decision, Group, Row, Speedup, Verdict
from mpx.compare.run import Run
from mpx.compare.table import read_results
from mpx.compare.verdict import Outcome, fastest_to_train, soonest

HERE = Path(__file__).parent
sys.path.append(str(HERE))
from collecting import Arguments, markdown, read  # noqa: E402

README, PAGE, GRID = HERE.parent / "README.md", HERE.parent / "docs" / "measured.md", HERE / "grid"
MARKS = re.compile(r"(<!-- measured -->\n).*?(<!-- end of measured -->)", re.DOTALL)
TASKS = {
    ("resnet18", "cifar10"): "ResNet-18, CIFAR-10", ("resnet18", "fashion_mnist"): "ResNet-18, Fashion-MNIST",
    ("bert_small", "sst2"): "BERT-small, SST-2", ("lstm", "sst2"): "LSTM, SST-2",
}  # fmt: skip
# tasks of the grid where 2:4 costs something, the unit of its loss, and the factor from a difference to it
LOSING = (
    (("resnet20", "cifar10"), "ResNet-20 on CIFAR-10", "points", -100),
    (("lstm", "wikitext2"), "The LSTM on WikiText-2", "of perplexity", 1),
)
MARGIN, CONFIDENCE = 0.005, 0.95
DENSE_FP16, PRUNED = {"control": "amp-dense"}, ("amp", "2of4")
FORMATS = {"fp32": "FP32", "tf32": "TF32", "amp": "FP16", "amp_bf16": "BF16"}


def main() -> None:
    Arguments().parse_args()
    for file, made in ((PAGE, measured()), (README, headlines())):
        text = file.read_text(encoding="utf-8")
        file.write_text(
            MARKS.sub(lambda match, made=made: match[1] + made + match[2], text), encoding="utf-8"
        )


def measured() -> str:
    """The part of docs/measured.md between the marks."""
    runs, no_restart = (newest(read_results(GRID / name))[0] for name in ("results.csv", "no_restart.csv"))
    # a single test of all seeds, for comparisons that no plan named
    unplanned = [replace(run, looks=None) for run in runs]
    pruned = [run for run in unplanned if (run.precision, run.sparsity) == PRUNED]
    grid, in_fp16, to_no_restart = (
        groups(runs, margin=MARGIN),
        groups(unplanned, **DENSE_FP16),
        groups(pruned + no_restart, **DENSE_FP16),
    )
    cells: dict[str, Callable[[tuple[str, str]], str]] = {
        "GPU; seeds": lambda task: "; ".join(setup(grid[task])),
        "test accuracy in FP32": lambda task: f"{100 * grid[task].rows[0].metric.mean:.1f} %",
        "settings at no loss to dense FP32 of the same schedule; also for the population": lambda task: (
            "; ".join(safe(grid[task]))
        ),
        "fastest of these; another that is shown to end sooner": lambda task: "; ".join(first(grid[task])),
        "its throughput, in units of mpx's FP32": lambda task: f"{fastest(grid[task]).speedup.ratio:.2f}",
        "its time to train, FP32's ÷ its own": lambda task: ratio(fastest(grid[task]).sooner),
        "points that 2:4 changes, FP16 (in no plan)": lambda task: points(in_fp16[task]),
        "the same to dense runs without the rise (5 seeds, other hosts)": lambda task: points(
            to_no_restart[task]
        ),
    }
    table = markdown(["", *TASKS.values()], [[name, *map(cell, TASKS)] for name, cell in cells.items()])
    return table + "\n\n" + "\n".join([of_the_others(grid), *sentences()]) + "\n"


def headlines() -> str:
    """The part of README between the marks."""
    grid = groups(newest(read_results(GRID / "results.csv"))[0], margin=MARGIN)
    faster = sorted(fastest(grid[task]).speedup.ratio for task in TASKS)
    speed, scaling = rivals(), read(HERE / "scaling" / "results.csv")
    lightning, hand = (span(sorted(against(speed, contender))) for contender in ("lightning", "hand"))
    two = span(sorted(on_gpus(2, scaling)))
    return (
        f"- The fastest 16-bit format trains {span(faster)} times as fast as FP32 at no loss of accuracy, "
        "in four tasks on an H100 "
        "([grid](experiments/grid)).\n"
        f"- mpx trains {lightning} times as fast as Lightning's defaults, and {hand} times as fast as a "
        "loop tuned by hand whose step is "
        "one CUDA graph ([speed](experiments/speed)).\n"
        f"- Two H100s train {two} times as fast as one ([scaling](experiments/scaling)).\n"
    )


def groups(runs: list[Run], **how: Any) -> dict[tuple[str, str], Group]:
    found = compare(runs, question(**how), study="grid", folder=GRID)
    return {(group.model, group.data): group for group in found.groups}


def fastest(group: Group) -> Row:
    answer = fastest_to_train(group, CONFIDENCE)
    assert answer.outcome is Outcome.SETTING
    return answer.best


def first(group: Group) -> Iterator[str]:
    winner, sooner = fastest(group), soonest(group, CONFIDENCE)[0]
    shown = (winner.decision.population.low or -1) > -MARGIN
    yield named(winner) + ("" if shown else " (not for the population)")
    yield "none" if sooner is winner else named(sooner)


def named(row: Row) -> str:
    run = row.runs[0]
    return FORMATS[run.precision] + ("" if run.sparsity == "dense" else ", 2:4")


def setup(group: Group) -> tuple[str, str]:
    """GPU and number of seeds."""
    seeds = " or ".join(str(count) for count in sorted({len(row.runs) for row in group.rows[1:]}))
    return group.rows[0].runs[0].device.split()[1], seeds


def safe(group: Group) -> Iterator[str]:
    others = group.rows[1:]
    yield f"{sum(row.decision.verdict is Verdict.NO_LOSS for row in others)} of {len(others)}"
    intervals = [row.decision.population for row in others if row.decision.population.low is not None]
    yield f"{sum(interval.low > -MARGIN for interval in intervals)}" if intervals else "not known"


def ratio(speedup: Speedup) -> str:
    return f"{speedup.ratio:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"


def points(group: Group) -> str:
    change = next(
        row for row in group.rows if (row.runs[0].precision, row.runs[0].sparsity) == PRUNED
    ).decision
    return f"{100 * change.difference:+.2f} ({100 * change.low:+.2f} to {100 * change.high:+.2f})".replace(
        "-", "−"
    )


def of_the_others(grid: dict[tuple[str, str], Group]) -> str:
    """The differences are to the control, dense FP32."""
    found = []
    for task, name, unit, scale in LOSING:
        others = grid[task].rows[1:]
        pruned = [row.decision for row in others if row.runs[0].sparsity == "2of4"]
        lost = [scale * decision.difference for decision in pruned]
        dense = [row for row in others if row.runs[0].sparsity == "dense"]
        good = ", ".join(named(row) for row in dense if row.decision.verdict is Verdict.NO_LOSS)
        found.append(
            f"{name}: dense {good} at no loss, at most {fastest(grid[task]).speedup.ratio:.2f} times as "
            "fast as FP32; "
            f"2:4 costs {min(lost):.1f} to {max(lost):.1f} {unit}, {decided(pruned)}"
        )
    return f"- **Tasks where 2:4 costs something** ([grid](../experiments/grid)). {'. '.join(found)}."


def decided(decisions: list[Decision]) -> str:
    verdicts = Counter(decision.verdict for decision in decisions)
    losses, without = verdicts[Verdict.LOSS], verdicts[Verdict.NO_LOSS]
    if losses == len(decisions):
        return "a loss in every format"
    return (
        f"a loss in {losses} formats and none in {without}"
        if losses or without
        else "which is shown neither to be a loss nor to be none"
    )


def sentences() -> Iterator[str]:
    speed, scaling = rivals(), read(HERE / "scaling" / "results.csv")
    models = Counter(
        FORMATS[precision] for _, precision in {(row["model"], row["precision"]) for row in speed}
    )
    formats = " and ".join(f"{models[name]} models in {name}" for name in sorted(models))
    rounds = " or ".join(
        map(
            str,
            sorted(
                set(Counter((row["model"], row["precision"], row["contender"]) for row in speed).values())
            ),
        )
    )
    lightning, tuned, hand = (
        span(sorted(against(speed, contender))) for contender in ("lightning", "lightning, tuned", "hand")
    )
    first = span(sorted(1 / ratio for ratio in against(speed, "mpx, pool=first")))
    yield (
        f"- **Beside other loops** ([speed](../experiments/speed): one {speed[0]['device']}, {formats}, "
        f"{rounds} rounds, steps as compiled "
        f"for a long run). mpx trains {lightning} times as fast as Lightning's defaults, {tuned} times as "
        "fast as Lightning tuned (most "
        f"for the LSTM, which has no CUDA graph there and is FP16 in both), and {hand} times as fast as a "
        "loop tuned by hand whose step is "
        "one CUDA graph. "
        "Here mpx's BERT computes the whole last layer, as the rivals do; mpx's default computes it for "
        "the first token alone, and is "
        f"{first} times as fast as that."
    )
    earlier = read(HERE / "scaling" / "earlier.csv")
    calls = [
        [row for row in earlier if row["commit"] == commit] for commit in {row["commit"] for row in earlier}
    ]
    before = span(sorted(ratio for rows in calls for ratio in on_gpus(2, rows)))
    pairs = [(rates_on(gpus, scaling, "mpx"), rates_on(gpus, scaling, "hand")) for gpus in "24"]
    beside = span(
        sorted(mine[model] / hand[model] for mine, hand in pairs for model in mine.keys() & hand.keys())
    )
    two, four = (sorted(on_gpus(gpus, scaling)) for gpus in (2, 4))
    yield (
        f"- **Several GPUs** ([scaling](../experiments/scaling): {scaling[0]['device']}, BF16, each with "
        "the batch of one, one round). Two "
        f"train {span(two)} times as fast as one ({before} in earlier rounds), four {span(four)} times "
        f"({len(four)} models), and "
        f"both {beside} times as fast as such a loop on as many."
    )


def rivals() -> list[dict[str, str]]:
    rows = read(HERE / "speed" / "results.csv")
    return [
        row for row in rows if row["section"] == "rivals" and row["samples_per_s"] and not row["rejected"]
    ]


def span(ratios: list[float]) -> str:
    """From the lowest to the highest. What is just below 1 is not rounded to it."""
    low, high = (
        f"{ratio:.3f}" if 0.995 <= ratio < 1 else f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1])
    )
    return low if low == high else f"{low} to {high}"


def against(rows: list[dict[str, str]], contender: str) -> Iterator[float]:
    for pair in {(row["model"], row["precision"]) for row in rows if row["contender"] == contender}:
        mine, theirs = (rates(rows, pair, who) for who in ("mpx", contender))
        yield median(mine) / median(theirs)


def rates(rows: list[dict[str, str]], pair: tuple[str, str], contender: str) -> list[float]:
    return [
        float(row["samples_per_s"])
        for row in rows
        if (row["model"], row["precision"]) == pair and row["contender"] == contender
    ]


def on_gpus(gpus: int, rows: list[dict[str, str]]) -> Iterator[float]:
    """mpx's speed-up of each model against one GPU."""
    one, several = (rates_on(str(count), rows, "mpx") for count in (1, gpus))
    yield from (several[model] / one[model] for model in several.keys() & one.keys())


def rates_on(gpus: str, rows: list[dict[str, str]], contender: str) -> dict[str, float]:
    """Samples/s of each model on so many GPUs, the mean of the rounds."""
    rows = [
        row
        for row in rows
        if (row["contender"], row["gpus"]) == (contender, gpus)
        and row["samples_per_s"]
        and not row.get("rejected")
    ]
    return {
        name: fmean(float(row["samples_per_s"]) for row in rows if row["model"] == name)
        for name in {row["model"] for row in rows}
    }


if __name__ == "__main__":
    main()
