"""A comparison on the terminal: per group what happened to accuracy, what to speed, and the two verdicts; then what was left out."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpx.report.comparison import METRICS, Comparison, Estimate, Group, Row
from mpx.report.tables import console, number
from mpx.report.verdict import decided, interval, mean_std

ACCURACY = ("setting", "seeds", "diverged", "", "difference to the control", "decision", "p, Holm")
SPEED = ("setting", "samples/s", "speed-up", "peak GiB", "time to train", "skipped steps", "density")
TEXTS = ("setting", "decision")
MOST = 20  # left-out runs that are listed


def print_comparison(comparison: Comparison) -> None:
    out = console()
    for group in comparison.groups:
        out.print(_accuracy(group))
        out.print(_speed(group))
        for sentence in (group.train_verdict, group.serve_verdict):
            out.print(sentence, style="bold", highlight=False, markup=False)
        for note in group.notes:
            out.print(f"· {note}", highlight=False, markup=False)
        out.print()
    _print_left_out(out, comparison.left_out)


def title(group: Group) -> str:
    return f"{group.model} on {group.data}" + (f", {group.changes}" if group.changes else "")


def _table(heading: str | None, columns: tuple[str, ...]) -> Table:
    table = Table(title=heading, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        text = name in TEXTS  # which may be folded, figures may not
        table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    return table


def _accuracy(group: Group) -> Table:
    metric = METRICS[group.metric]
    table = _table(escape(title(group)), tuple(name or metric.words for name in ACCURACY))
    for row in group.rows:
        difference, verdict, p = "", "control" if row.setting == group.control else "–", None
        if row.decision:
            difference, verdict, p = interval(row.decision, metric), decided(row.decision), row.decision.p_holm
        mean = "–" if row.metric is None else mean_std(row.metric, metric)
        table.add_row(escape(row.setting), str(len(row.runs)), str(row.diverged or ""), mean, difference, verdict, number(p, ".2g"))
    return table


def _speed(group: Group) -> Table:
    table = _table(None, SPEED)
    for row in group.rows:
        figures = [
            spread(row.throughput, ",.0f"), _speedup(row), spread(row.peak_gib, ".2f"), spread(row.time_to_train_s, ",.1f", " s"),
            spread(row.skipped_steps, ",.1f"), spread(row.density, ".3f"),
        ]  # fmt: skip
        table.add_row(escape(row.setting), *figures)
    return table


def spread(found: Estimate | None, spec: str, unit: str = "") -> str:
    """`12.3 ± 0.1 s`; – for unknown, and no spread where it would read as zero."""
    if found is None:
        return "–"
    std = f"{found.std:{spec}}" if found.std else "0"
    return f"{found.mean:{spec}}" + (f" ± {std}" if std.strip("0.,") else "") + unit


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "–"
    bounds = "" if row.speedup.low is None else f" ({row.speedup.low:.2f} to {row.speedup.high:.2f})"
    return f"{row.speedup.ratio:.2f}×{bounds}"


def _print_left_out(out: Console, left_out: tuple[tuple[str, str], ...]) -> None:
    if left_out:
        out.print(f"{len(left_out)} left out:", highlight=False)
    for folder, reason in left_out[:MOST]:
        out.print(f"· {folder}: {reason}", highlight=False, markup=False)
    if len(left_out) > MOST:
        out.print(f"· and {len(left_out) - MOST} more", highlight=False)
