"""The tables of a comparison: settings, ways to serve, runs, and runs left out. All formats show the same
cells; and the terminal's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mpx.compare import words
from mpx.compare.comparison import Comparison, Decision, Group, Row, Verdict
from mpx.compare.run import Run, Way
from mpx.compare.served import Serving, by_way, order, places
from mpx.compare.words import spread
from mpx.render.table import Cell, Column, Table, console, print_table
from mpx.runs.result import Metric
from mpx.system.printing import UNKNOWN, digits, number, rate, share_digits, shown

if TYPE_CHECKING:  # matplotlib is slow to import, and the terminal does not need it
    from mpx.render.picture import Styles

HEADS = {  # key of `_setting` -> head of the column; "" stands for the metric's name
    "setting": "setting", "seeds": "seeds", "metric": "", "difference": "difference",
    "population": "for the population", "decision": "decision", "p": "p, Holm",
    "rate": "training samples/s", "speedup": "speed-up", "peak_gib": "peak GiB", "time": "time to train, s",
    "skipped": "skipped steps", "underflow": "gradients that vanish", "density": "density",
    "serve": "served samples/s",
}  # fmt: skip
BADGES = {Verdict.NO_LOSS: "good", Verdict.LOSS: "bad"}  # verdict -> kind; open: all others
CONTROL = "control"
SERVED = {  # field of Serving -> its words
    "latency_ms_p50": "latency p50, ms",
    "latency_ms_p99": "latency p99, ms",
    "samples_per_s": "samples/s",
    "weights_gib": "size, MiB",
}
LESS_ACCURATE = "less accurate"
MAX_LEFT_OUT = 20  # runs that are listed


def settings_table(group: Group, styles: "Styles") -> Table:
    """One row per setting, without columns of unknown values."""
    columns = [
        Column(head or group.metric.words, words=key in ("setting", "decision"))
        for key, head in HEADS.items()
    ]
    rows = [_setting(row, group, styles) for row in group.rows]
    return Table(words.title(group), columns, [[row[key] for key in HEADS] for row in rows]).known(3)


def _setting(row: Row, group: Group, styles: "Styles") -> dict[str, Cell | str]:
    spec, decision, control = group.metric.spec, row.decision, row.setting == group.control
    time, peak, lost = (
        one.mean if one else None for one in (row.time_to_train_s, row.peak_gib, row.underflow)
    )
    lacking = len(row.completed) - (row.metric.n if row.metric else 0)
    uncounted = {"diverged": row.diverged, f"without {group.metric.words}": lacking}
    others = row.cpu_used_by_others.mean if row.cpu_used_by_others else None
    unshared = CONTROL if control and row.throughput else UNKNOWN
    return {
        "setting": setting(row.setting, styles),
        "seeds": ", ".join(
            [str(len(row.runs)), *(f"{count} {why}" for why, count in uncounted.items() if count)]
        ),
        "metric": spread(row.metric, spec),
        "difference": words.difference(decision, spec) if decision else UNKNOWN,
        "population": words.population(decision, spec),
        "decision": CONTROL if control else decided(decision),
        "p": number(decision.p_decided if decision else None, ".2g"),
        "rate": spread(row.throughput or row.shared)
        + marked(words.shared(others) if row.shared and not row.throughput else ""),
        "speedup": words.speedup(row.speedup) if row.speedup else unshared,
        "peak_gib": spread(row.peak_gib, digits(peak, 2)),
        "time": spread(row.time_to_train_s, digits(time, 1))
        + marked(f"{row.sooner.ratio:.2f}×" if row.sooner else ""),
        "skipped": spread(row.skipped_steps, ",.1f"),
        "underflow": spread(row.underflow, share_digits(lost)),
        "density": spread(row.density, ".3f"),
        "serve": spread(row.serve),
    }


def served_tables(group: Group, styles: "Styles") -> list[Table]:
    """How each setting was served: a table for each place, with a column for each way to serve."""
    return [
        _served_table(
            f"Served on {place.device}, latency at batch {place.smallest:,}, "
            f"samples/s at batch {place.largest:,}",
            group,
            list(by_way(group, place)),
            styles,
        )
        for place in places(group)
    ]


def _served_table(
    title: str, group: Group, servings: Sequence[tuple[Row, Mapping[Way, Serving]]], styles: "Styles"
) -> Table:
    ways = sorted({way for _, by_row in servings for way in by_row}, key=order)
    lines: list[list[Cell | str]] = [
        [setting(row.setting, styles), name, *(_serving(by_row.get(way), key, row, group) for way in ways)]
        for key, name in {"metric": group.metric.words, **SERVED}.items()
        for row, by_row in servings
    ]
    heads = [Column(f"{way.words}, {way.backend}") for way in ways]
    return Table(title, [Column("setting", words=True), Column("figure", words=True), *heads], lines)


def _serving(serving: Serving | None, key: str, row: Row, group: Group) -> str:
    if serving is None:
        return UNKNOWN
    if key == "metric":
        served, completed = serving.samples_per_s.n, len(row.completed)
        less = "" if serving.accurate else LESS_ACCURATE
        some = f"{served} of {completed} seeds" if served < completed else ""
        return spread(serving.metric, group.metric.spec) + marked(less, some)
    if key == "weights_gib":
        gib = serving.weights_gib
        return spread(replace(gib, mean=gib.mean * 1024, std=gib.std and gib.std * 1024))
    by = serving.latency_by if key.startswith("latency") else ""
    return spread(getattr(serving, key)) + marked(
        by, "" if serving.exclusive else words.shared(serving.cpu_used_by_others)
    )


def marked(*marks: str) -> str:
    """What stands behind a figure: ` (shared)`."""
    known = ", ".join(filter(None, marks))
    return f" ({known})" if known else ""


def runs_table(group: Group, study: Path, styles: "Styles") -> Table:
    rows = [_run(row.setting, run, group.metric, study, styles) for row in group.rows for run in row.runs]
    columns = [Column(head, words=head in ("run", "status")) for head in rows[0]]
    return Table(f"Runs of {words.title(group)}", columns, [list(row.values()) for row in rows]).known(2)


def _run(name: str, run: Run, metric: Metric, study: Path, styles: "Styles") -> dict[str, Cell | str]:
    """Head of the column -> cell."""
    speed, alone = run.train_samples_per_s, "" if run.exclusive else words.shared(run.cpu_used_by_others)
    mark = "emulated" if run.emulated else alone
    return {
        "run": setting(name, styles),
        "seed": str(run.seed),
        "status": run.status,
        metric.words: number(run.metrics.get(metric.name), metric.spec),
        "samples/s": UNKNOWN if speed is None else rate(speed) + marked(mark),
        "step, ms": number(run.step_ms_p50, ".2f"),
        "train time, s": number(run.time_to_train_s, digits(run.time_to_train_s, 1)),
        "peak GiB": number(run.peak_gib, digits(run.peak_gib, 2)),
        "batch size": number(run.batch_size, "d"),
        "loss scale": number(run.loss_scale_final, "g"),
        "skipped steps": number(run.skipped_steps, ",d"),
        "gradients that vanish": number(run.gradient_underflow, share_digits(run.gradient_underflow)),
        "density": number(run.density, ".3f"),
        "magnitude kept": number(run.kept_magnitude, ".1%"),
        "record": _link(run, study),
    }


def _link(run: Run, study: Path) -> Cell:
    """Links to the record and the folder if they still exist; relative, so that the study can be moved as a
    whole.
    """
    if run.folder is None or not (study / run.folder / "result.json").is_file():
        return Cell(UNKNOWN)
    place = escape(quote(run.folder))
    return Cell(run.folder, html=f'<a href="{place}/result.json">json</a> <a href="{place}/">folder</a>')


def left_out_table(comparison: Comparison) -> Table:
    rows: list[list[Cell | str]] = [
        [Cell(folder, html=f"<code>{escape(folder)}</code>"), reason]
        for folder, reason in comparison.left_out
    ]
    return Table("Runs left out", [Column("folder", words=True), Column("why", words=True)], rows)


def setting(name: str, styles: "Styles") -> Cell:
    return Cell(name, style=styles.get(name))


def decided(decision: Decision | None) -> Cell:
    badge = BADGES.get(decision.verdict, "open") if decision else None
    return Cell(words.decided(decision), badge=badge)


def print_comparison(comparison: Comparison) -> None:
    """On the terminal: accuracy, speed, verdicts and notes of each group, then the runs left out."""
    out = console()
    for group in comparison.groups:
        for table in (settings_table(group, {}), *served_tables(group, {})):
            print_table(table, framed=False)
        out.print(shown(group.train_verdict), style="bold")
        for sentence in filter(None, (group.evidence, group.time_verdict, group.serve_verdict)):
            out.print(shown(sentence))
        for note in group.notes:
            out.print(shown(f"· {note}"))
        out.print()
    if left_out := comparison.left_out:
        out.print(f"{len(left_out)} left out:")
    for folder, reason in left_out[:MAX_LEFT_OUT]:
        out.print(shown(f"· {folder}: {reason}"))
    if len(left_out) > MAX_LEFT_OUT:
        out.print(f"· and {len(left_out) - MAX_LEFT_OUT} more")
