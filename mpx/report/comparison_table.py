"""A comparison on the terminal: per group one table, the two verdicts and what one must know; then the runs that were left out."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpx.report.comparison import METRICS, Comparison, Estimate, Group, Metric, Row
from mpx.report.tables import console
from mpx.report.verdict import decided, interval

COLUMNS = ("setting", "seeds", "", "difference", "decision", "samples/s", "speed-up", "peak GiB", "train s", "skipped steps", "density")
WIDTHS = {"setting": 12, "decision": 17, "difference": 18}  # characters at least
MOST = 20  # left-out runs that are listed


def print_comparison(comparison: Comparison) -> None:
    out = console()
    for group in comparison.groups:
        out.print(_table(group))
        for sentence in (group.train_verdict, group.serve_verdict):
            out.print(sentence, style="bold", highlight=False, markup=False)
        for note in group.notes:
            out.print(f"· {note}", highlight=False, markup=False)
        out.print()
    _print_left_out(out, comparison.left_out)


def title(group: Group) -> str:
    return f"{group.model} on {group.data}" + (f", {group.changes}" if group.changes else "")


def _table(group: Group) -> Table:
    metric = METRICS[group.metric]
    table = Table(
        title=escape(title(group)), title_justify="left", header_style="bold", box=box.HORIZONTALS, show_lines=True, padding=(0, 1, 0, 0)
    )
    for name in COLUMNS:
        left = name in ("setting", "decision")
        table.add_column(
            name or metric.words.replace(" ", "\n"), justify="left" if left else "right", overflow="fold", min_width=WIDTHS.get(name)
        )
    for row in group.rows:
        table.add_row(*_cells(row, group, metric))
    return table


def _cells(row: Row, group: Group, metric: Metric) -> list[str]:
    seeds = str(len(row.runs)) + (f"\n{row.diverged} diverged" if row.diverged else "")
    difference, decision = "", "control" if row.setting == group.control else "–"
    if row.decision:
        p = row.decision.p_holm
        difference = interval(row.decision, metric, between="\n")
        decision = decided(row.decision).replace(" to tell, ", "\n").replace(", ", "\n") + (f"\np = {p:.2g}" if p is not None else "")
    figures = [
        spread(row.throughput, ",.0f"), _speedup(row), spread(row.peak_gib, ".2f"), spread(row.time_to_train_s, ",.1f"),
        spread(row.skipped_steps, ",.1f"), spread(row.density, ".3f", std=False),
    ]  # fmt: skip
    return [escape(row.setting), seeds, spread(row.metric, ".2f" if metric.relative else ".4f"), difference, decision, *figures]


def spread(found: Estimate | None, spec: str, *, std: bool = True) -> str:
    """Mean, and below it the standard deviation; – for unknown."""
    if found is None:
        return "–"
    return f"{found.mean:{spec}}" + (f"\n± {found.std:{spec}}" if std and found.std is not None else "")


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "–"
    bounds = "" if row.speedup.low is None else f"\n({row.speedup.low:.2f} to {row.speedup.high:.2f})"
    return f"{row.speedup.ratio:.2f}×{bounds}"


def _print_left_out(out: Console, left_out: tuple[tuple[str, str], ...]) -> None:
    if left_out:
        out.print(f"{len(left_out)} left out:", highlight=False)
    for folder, reason in left_out[:MOST]:
        out.print(f"· {folder}: {reason}", highlight=False, markup=False)
    if len(left_out) > MOST:
        out.print(f"· and {len(left_out) - MOST} more", highlight=False)
