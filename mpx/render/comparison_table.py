"""A comparison on the terminal: per group what happened to accuracy, what to speed, and the two verdicts; then what was left out."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpx.compare.batch_scaling import growths, sizes
from mpx.compare.comparison import METRICS, Comparison, Group
from mpx.compare.words import UNKNOWN, decided, difference, metric_spec, plain, rate, speedup, spread, title
from mpx.render.run_tables import console

ACCURACY = ("setting", "seeds", "diverged", "", "difference to the control", "decision", "p, Holm")
SPEED = ("setting", "samples/s", "speed-up", "peak GiB", "time to train", "skipped steps", "underflow", "density")
TEXTS = ("model", "setting", "decision")
MOST = 20  # left-out runs that are listed


def print_comparison(comparison: Comparison) -> None:
    out = console()
    for group in comparison.groups:
        out.print(_accuracy(group))
        if len((speeds := _speed(group)).columns) > 1:
            out.print(speeds)
        for sentence in filter(None, (group.train_verdict, group.serve_verdict)):
            out.print(sentence, style="bold", highlight=False, markup=False)
        for note in group.notes:
            out.print(f"· {note}", highlight=False, markup=False)
        out.print()
    if lines := growths(comparison):
        columns = sizes(lines)
        rows = [(escape(line.of), escape(line.setting), *(speedup(line.speedups.get(size)) for size in columns)) for line in lines]
        out.print(_table("Speed-up by batch size", ("model", "setting", *(f"batch {size:,}" for size in columns)), rows))
    _print_left_out(out, comparison.left_out)


def _table(heading: str | None, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """Without the columns in which nothing is known, which would crowd the others."""
    table = Table(title=heading, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] not in ("", UNKNOWN) for row in rows)]
    for i in kept:
        text = columns[i] in TEXTS  # which may be folded, figures may not
        table.add_column(columns[i], justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    return table


def _accuracy(group: Group) -> Table:
    spec = metric_spec(group.metric)
    rows = [
        (
            escape(row.setting), str(len(row.runs)), str(row.diverged or ""), spread(row.metric, spec), difference(row.decision, spec),
            "control" if row.setting == group.control else decided(row.decision),
            plain(row.decision.p_decided if row.decision else None, ".2g"),
        )
        for row in group.rows
    ]  # fmt: skip
    return _table(escape(title(group)), tuple(name or METRICS[group.metric].words for name in ACCURACY), rows)


def _speed(group: Group) -> Table:
    rows = [
        (
            escape(row.setting), rate(row), speedup(row.speedup), spread(row.peak_gib, ".2f"), spread(row.time_to_train_s, ",.1f", " s"),
            spread(row.skipped_steps, ",.1f"), plain(row.underflow.mean if row.underflow else None, ".3%"), spread(row.density, ".3f"),
        )
        for row in group.rows
    ]  # fmt: skip
    return _table(None, SPEED, rows)


def _print_left_out(out: Console, left_out: tuple[tuple[str, str], ...]) -> None:
    if left_out:
        out.print(f"{len(left_out)} left out:", highlight=False)
    for folder, reason in left_out[:MOST]:
        out.print(f"· {folder}: {reason}", highlight=False, markup=False)
    if len(left_out) > MOST:
        out.print(f"· and {len(left_out) - MOST} more", highlight=False)
