"""The talk's table, `Dense FP16 | Sparse FP16 | Sparse INT8`, from accuracy.csv into README.md."""

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from collecting import line, put_between, read, spread

from mpx.compare.run import METRICS
from mpx.compare.statistics import Finding, examine, holm

HERE = Path(__file__).parent
MARK, END = "<!-- accuracy -->", "<!-- end of accuracy -->"
MARGIN, CONFIDENCE = 0.005, 0.95  # half a point
CORRECTED = (
    "Holm's method corrects the verdicts for the settings of a task, not for the number of tasks; "
    "intervals are not corrected"
)
FULL = ("fp16", "fp32")  # the format of the control: FP32 on a CPU
Row = dict[str, str]


def update_card(table: Path) -> None:
    """Copy the table here, unless it is this one or was not made, and write what it says between the
    marks.
    """
    here = HERE / "accuracy.csv"
    if table.exists() and not table.samefile(here):
        shutil.copyfile(table, here)
    text = tables(read(here))
    put_between(MARK, END, text, HERE / "README.md")
    print(text)


def tables(rows: list[Row]) -> str:
    return "\n\n".join(
        [served([row for row in rows if row["format"]]), *recipes([row for row in rows if not row["format"]])]
    )


def recipes(rows: list[Row]) -> list[str]:
    """What each recipe costs, by the tests of the trained models; nothing without such rows."""
    if not rows:
        return []
    heads = [
        "task",
        "recipe",
        "seeds",
        "validation, %",
        "test, %",
        "to dense, points",
        "95 % interval",
        "within 0.5 point",
    ]
    lines = [line(heads), "|---|---|---:|---:|---:|---:|---:|---|"]
    by_run: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        by_run.setdefault((row["task"], row["recipe"]), {})[int(row["seed"])] = row
    tested: dict[str, dict[str, Finding]] = {}
    for (task, recipe), runs in by_run.items():
        control = by_run[task, "dense"]
        mine, theirs = (
            {seed: float(one[seed]["trained_accuracy"]) for seed in runs.keys() & control.keys()}
            for one in (runs, control)
        )
        if recipe != "dense":
            tested.setdefault(task, {})[recipe] = test(mine, theirs)
    for (task, recipe), runs in by_run.items():
        shown = [
            spread([100 * float(run[name]) for run in runs.values()])
            for name in ("validation_accuracy", "trained_accuracy")
        ]
        lines.append(
            line(
                [
                    task,
                    recipe,
                    len(runs),
                    *shown,
                    *(("–",) * 3 if recipe == "dense" else compared(tested[task])[recipe][1:]),
                ]
            )
        )
    return [
        "## Which recipe?",
        f"Not served. {devices(rows)}. Epochs of training: {epochs(rows)}. {CORRECTED}.",
        "\n".join(lines),
    ]


def test(mine: dict[int, float], theirs: dict[int, float]) -> Finding:
    """By seed; the same seeds in both."""
    return examine(mine, theirs, METRICS["test/accuracy"], MARGIN, CONFIDENCE)


def compared(findings: dict[str, Finding]) -> dict[str, tuple]:
    """Cells of each setting of one task: seeds, difference, interval, verdict. Holm's method corrects the
    verdicts for their number.
    """
    tested = {name: one for name, one in findings.items() if one.p_no_loss is not None}
    no_loss, loss = (
        holm([getattr(one, side) for one in tested.values()]) for side in ("p_no_loss", "p_loss")
    )
    verdicts = dict(zip(tested, map(verdict, no_loss, loss), strict=True))
    return {
        name: (one.n, f"{100 * one.difference:+.2f}", interval(one), verdicts.get(name, "not decided"))
        for name, one in findings.items()
    }


def served(rows: list[Row]) -> str:
    by_task: dict[str, dict[tuple, list[Row]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], {}).setdefault(variant(row), []).append(row)
    variants = sorted(
        {variant(row) for row in rows},
        key=lambda one: (one[0] != "dense" or one[1] not in FULL, one[0], one[1] == "int8", one),
    )
    heads = [title(one) for one in variants]
    ruler = "|---|" + "---:|" * len(heads)
    accuracy = [line(["task", *heads]), ruler]
    speed = list(accuracy)
    differences = [
        "| task | served | seeds | difference, points | 95 % interval | within 0.5 point |",
        "|---|---|---:|---:|---:|---|",
    ]
    for task, found in by_task.items():
        accuracy.append(line([task, *(accuracies(found.get(one, [])) for one in variants)]))
        speed.append(line([task, *(rate(found.get(one, [])) for one in variants)]))
        control, tested = by_seed(found.get(variants[0], [])), {}
        for one in variants[1:]:
            mine = by_seed(found.get(one, []))
            if shared := mine.keys() & control.keys():
                mine, theirs = ({seed: values[seed] for seed in shared} for values in (mine, control))
                tested[title(one)] = test(mine, theirs)
        differences += [line([task, name, *cells]) for name, cells in compared(tested).items()]
    alone = "one seed, alone on the device; in brackets the number of layers with 2:4 kernels"
    parts = [
        "Test accuracy as served, %, mean ± standard deviation over the seeds:",
        "\n".join(accuracy),
        f"Difference to {heads[0]}, paired by seed. {CORRECTED}:",
        "\n".join(differences),
        f"Samples per second in batches of {batches(rows)} ({alone}):",
        "\n".join(speed),
        f"{devices(rows)}. Epochs of training: {epochs(rows)}.",
    ]
    reasons = {
        f"{row['task']}, {title(variant(row))}: {row['reason'].removeprefix('error: ')}"
        for row in rows
        if row["reason"]
    }
    return "\n\n".join([*parts, *sorted(reasons)])


def variant(row: Row) -> tuple[str, str, bool]:
    """Recipe, format, and whether a pruned model was served by dense kernels alone."""
    return row["recipe"], row["format"], row["recipe"] != "dense" and row["sparse_layers"] == "0"


def title(one: tuple[str, str, bool]) -> str:
    recipe, fmt, by_dense = one
    name = (
        f"Dense {fmt.upper()}"
        if recipe == "dense"
        else (f"{'Pruned' if by_dense else 'Sparse'} {fmt.upper()}, {recipe}")
    )
    return name + (", dense kernels" if by_dense else "")


def by_seed(rows: list[Row]) -> dict[int, float]:
    return {int(row["seed"]): float(row["accuracy"]) for row in rows if row["accuracy"]}


def accuracies(rows: list[Row]) -> str:
    return spread([100 * value for value in by_seed(rows).values()])


def rate(rows: list[Row]) -> str:
    return next(
        (
            f"{float(row['samples_per_s']):,.0f} ({row['sparse_layers']})"
            for row in rows
            if row["samples_per_s"]
        ),
        "–",
    )


def interval(finding: Finding) -> str:
    return "–" if finding.low is None else f"{100 * finding.low:+.2f} to {100 * finding.high:+.2f}"


def verdict(p_no_loss: float, p_loss: float) -> str:
    """At 95 % confidence, one-sided: yes, no, or too few seeds to tell."""
    return "yes" if p_no_loss < 1 - CONFIDENCE else "no" if p_loss < 1 - CONFIDENCE else "not decided"


def batches(rows: list[Row]) -> str:
    return ", ".join(sorted({row["batch"] for row in rows if row["batch"]}))


def devices(rows: list[Row]) -> str:
    return "; ".join(sorted({f"{row['device']}, torch {row['torch']}" for row in rows if row["device"]}))


def epochs(rows: list[Row]) -> str:
    return ", ".join(
        f"{task} {count}"
        for task, count in sorted({(row["task"], row["epochs"]) for row in rows if row["epochs"]})
    )
