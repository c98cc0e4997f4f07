"""The tables of a comparison: settings, ways to serve, runs, and runs left out. All formats show the same
cells; and the terminal's.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from mpx.compare import words
from mpx.compare.comparison import Comparison, Decision, Estimate, Group, Row, Speedup, Verdict
from mpx.compare.run import Metric, Run, Way
from mpx.compare.served import Serving, by_way, order, places
from mpx.compare.words import SHARED, UNKNOWN, digits, rate_spec, share_digits
from mpx.render.colours import Style, Styles
from mpx.render.table import Cell, Column, Figure, Line, Table, console, print_table
from mpx.system.printing import shown

BADGES = {
    Verdict.NO_LOSS: ("good", "✓ no loss"),
    Verdict.LOSS: ("bad", "✗ loss"),
    Verdict.UNDECIDED: ("open", "? not enough seeds"),
    Verdict.NOT_COMPARABLE: ("open", "– not comparable"),
}
CONTROL = "control"
SERVED = {  # field of Serving -> its words
    "latency_ms_p50": "latency p50, ms",
    "latency_ms_p99": "latency p99, ms",
    "samples_per_s": "samples/s",
    "weights_gib": "size, MiB",
}
LESS_ACCURATE = "less accurate"
# of the terminal: key of `_setting` -> head of the column
ACCURACY = {
    "setting": "setting", "runs": "seeds", "diverged": "diverged", "metric": "",
    "difference": "difference to the control",
    "population": "for the population", "decision": "decision", "p": "p, Holm",
}  # fmt: skip
SPEED = {
    "setting": "setting", "rate": "samples/s", "speedup": "speed-up", "peak_gib": "peak GiB",
    "seconds": "time to train",
    "skipped": "skipped", "underflow_mean": "underflow", "density": "density",
}  # fmt: skip
MAX_WAYS = 3  # to serve, that fit side by side
MAX_LEFT_OUT = 20  # runs that are listed


def settings_table(
    title: str, group: Group, heads: Mapping[str, str], styles: Styles, *, least: int = 1
) -> Table:
    """heads: key of `_setting` -> head of the column, for the columns to show; "" stands for the metric's
    name.
    """
    columns = [
        Column(head or group.metric.words, words=key in ("setting", "decision"))
        for key, head in heads.items()
    ]
    rows = [_setting(row, group, styles) for row in group.rows]
    return Table(title, columns, [[row[key] for key in heads] for row in rows]).known(least)


def _setting(row: Row, group: Group, styles: Styles) -> dict[str, Cell | str]:
    control, seeds = row.setting == group.control, str(len(row.runs))
    diverged = f"{row.diverged} diverged" if row.diverged else ""
    time, peak, lost = (
        one.mean if one else None for one in (row.time_to_train_s, row.peak_gib, row.underflow)
    )
    return {
        "setting": setting(row.setting, styles.get(row.setting)),
        "runs": seeds,
        "diverged": str(row.diverged or ""),
        "seeds": Cell(
            ", ".join(filter(None, (seeds, diverged))), (seeds,), ((diverged,),) if diverged else ()
        ),
        "metric": estimate(row.metric, group.metric.spec),
        "difference": difference(row.decision, group.metric.spec),
        "population": population(row.decision, group.metric.spec),
        "decision": Cell(CONTROL) if control else decision(row.decision),
        "p": words.number(row.decision.p_decided if row.decision else None, ".2g"),
        "rate": rate(row),
        "speedup": speedup(row.speedup, control=control and row.throughput is not None),
        "peak_gib": estimate(row.peak_gib, digits(peak, 2)),
        "seconds": _seconds(row),
        "time": estimate(
            row.time_to_train_s, digits(time, 1), f"{row.sooner.ratio:.2f}×" if row.sooner else ""
        ),
        "skipped": estimate(row.skipped_steps, ",.1f"),
        "underflow": estimate(row.underflow, share_digits(lost)),
        "underflow_mean": words.number(lost, share_digits(lost)),
        "density": estimate(row.density, ".3f"),
        "serve": estimate(row.serve),
    }


def _seconds(row: Row) -> str:
    """Time to train with its ratio to the control's, or with its spread if there is no ratio. A terminal has
    no room for both.
    """
    time = row.time_to_train_s
    if time is None:
        return UNKNOWN
    spec = digits(time.mean, 1)
    return f"{time.mean:{spec}} s ({row.sooner.ratio:.2f}×)" if row.sooner else words.spread(time, spec, " s")


def served_tables(group: Group, styles: Styles, most: int = 100) -> list[Table]:
    """How each setting was served: a table for each place, with at most `most` ways to serve side by side."""
    tables = []
    for place in places(group):
        rows = list(by_way(group, place))
        ways = sorted({way for _, by_row in rows for way in by_row}, key=order)
        title = f"Served on {place.device}, latency at batch {place.smallest:,}, "
        title += f"samples/s at batch {place.largest:,}"
        tables += [
            _served_table(title, group, rows, ways[at : at + most], styles)
            for at in range(0, len(ways), most)
        ]
    return tables


def _served_table(
    title: str,
    group: Group,
    rows: Sequence[tuple[Row, Mapping[Way, Serving]]],
    ways: Sequence[Way],
    styles: Styles,
) -> Table:
    rows = [(row, servings) for row, servings in rows if servings.keys() & set(ways)]
    lines: list[list[Cell | str]] = [
        [
            setting(row.setting, styles.get(row.setting)),
            name,
            *(_serving(servings.get(way), key, row, group) for way in ways),
        ]
        for key, name in {"metric": group.metric.words, **SERVED}.items()
        for row, servings in rows
    ]
    heads = [Column(f"{way.words}, {way.backend}") for way in ways]
    return Table(title, [Column("setting", words=True), Column("figure", words=True), *heads], lines)


def _serving(serving: Serving | None, key: str, row: Row, group: Group) -> Cell:
    if serving is None:
        return Cell(UNKNOWN)
    if key == "metric":
        completed = len(row.runs) - row.diverged
        seeds = (
            f"{serving.samples_per_s.n} of {completed} seeds" if serving.samples_per_s.n < completed else ""
        )
        return estimate(
            serving.metric,
            group.metric.spec,
            ", ".join(filter(None, ("" if serving.accurate else LESS_ACCURATE, seeds))),
        )
    value = getattr(serving, key)
    if key == "weights_gib":
        return estimate(Estimate(value.mean * 1024, value.std and value.std * 1024, value.n))
    by = serving.latency_by if key.startswith("latency") else ""
    return estimate(value, mark=", ".join(filter(None, (by, "" if serving.exclusive else SHARED))))


def runs_table(title: str, group: Group, study: Path, styles: Styles) -> Table:
    rows = [_run(row.setting, run, group.metric, study, styles) for row in group.rows for run in row.runs]
    columns = [Column(head, words=head in ("run", "status")) for head, _ in rows[0]]
    return Table(title, columns, [[cell for _, cell in row] for row in rows]).known()


def _run(name: str, run: Run, metric: Metric, study: Path, styles: Styles) -> list[tuple[str, Cell | str]]:
    """(head of the column, cell) of each column."""
    speed, alone = run.train_samples_per_s, "" if run.exclusive else words.shared(run.cpu_used_by_others)
    mark = "emulated" if run.emulated else alone
    return [
        ("run", setting(name, styles.get(name))),
        ("seed", str(run.seed)),
        ("status", run.status),
        (metric.words, figure(run.metrics.get(metric.name), metric.spec)),
        ("samples/s", UNKNOWN if speed is None else figure(speed, rate_spec(speed), mark)),
        ("step, ms", figure(run.step_ms_p50, ".2f")),
        ("train time, s", figure(run.time_to_train_s, digits(run.time_to_train_s, 1))),
        ("peak GiB", figure(run.peak_gib, digits(run.peak_gib, 2))),
        ("batch size", figure(run.batch_size, "d")),
        ("loss scale", figure(run.loss_scale_final, "g")),
        ("skipped steps", figure(run.skipped_steps, ",d")),
        ("gradients that vanish", figure(run.gradient_underflow, share_digits(run.gradient_underflow))),
        ("density", figure(run.density, ".3f")),
        ("magnitude kept", figure(run.kept_magnitude, ".1%")),
        ("record", _link(run, study)),
    ]


def _link(run: Run, study: Path) -> Cell:
    """Links to the record and the folder if they still exist; relative, so that the study can be moved as a
    whole.
    """
    if run.folder is None or not (study / run.folder / "result.json").is_file():
        return Cell(UNKNOWN)
    place = escape(quote(run.folder))
    return Cell(run.folder, html=f'<a href="{place}/result.json">json</a> <a href="{place}/">folder</a>')


def left_out_table(title: str, comparison: Comparison) -> Table:
    rows: list[list[Cell | str]] = [
        [Cell(folder, html=f"<code>{escape(folder)}</code>"), reason]
        for folder, reason in comparison.left_out
    ]
    return Table(title, [Column("folder", words=True), Column("why", words=True)], rows)


def setting(name: str, style: Style | None) -> Cell:
    """A setting's name. HTML adds its plot marker, and shows each change beyond precision and sparsity on its
    own line.
    """
    first, *changes = name.split(" ") if "=" in name else [name]  # a label has spaces, and no changes
    return Cell(name, (first,), tuple((change,) for change in changes), style=style, name=True)


def figure(value: float | int | None, spec: str, mark: str = "") -> Cell:
    text = words.number(value, spec)
    return Cell(text, (Figure(text, value),) if text != UNKNOWN else (), ((mark,),) if mark else ())


def estimate(value: Estimate | None, spec: str | None = None, mark: str = "") -> Cell:
    """The mean, and the spread unless it rounds to zero."""
    if value is None:
        return Cell(UNKNOWN)
    spec = spec or rate_spec(value.mean)
    std = words.number(value.std, spec)
    small = [("±\u00a0", Figure(std, value.std))] if value.std is not None and std.strip("0.,%") else []
    text = words.spread(value, spec) + (f" ({mark})" if mark else "")
    return Cell(
        text, (Figure(words.number(value.mean, spec), value.mean),), (*small, *([(mark,)] if mark else []))
    )


def rate(row: Row) -> Cell:
    """Samples per second, marked if other programs may have used the device."""
    if row.throughput is None and row.shared is not None:
        share = row.cpu_used_by_others.mean if row.cpu_used_by_others else None
        return estimate(row.shared, mark=words.shared(share))
    return estimate(row.throughput)


def difference(decision: Decision | None, spec: str) -> Cell:
    if decision is None or decision.difference is None:
        return Cell(UNKNOWN)
    at, low, high = (
        Figure(words.signed(value, spec), value)
        for value in (decision.difference, decision.low, decision.high)
    )
    return Cell(
        words.difference(decision, spec), (at,), ((low, " to ", high),) if decision.low is not None else ()
    )


def population(decision: Decision | None, spec: str) -> Cell:
    """The interval for the population that the test set is a sample of."""
    interval = decision.population if decision is not None else None
    if interval is None or interval.low is None:
        return Cell(UNKNOWN)
    low, high = (Figure(words.signed(value, spec), value) for value in (interval.low, interval.high))
    return Cell(words.population(decision, spec), (low, " to ", high))


def speedup(gain: Speedup | None, *, control: bool = False) -> Cell:
    if gain is None:
        return Cell(UNKNOWN, (CONTROL,) if control else ())
    ratio, low, high = (
        Figure(words.number(value, ".2f"), value) for value in (gain.ratio, gain.low, gain.high)
    )
    ratio = Figure(f"{ratio.text}×", gain.ratio)
    return Cell(words.speedup(gain), (ratio,), ((low, " to ", high),) if gain.low is not None else ())


def decision(decided: Decision | None) -> Cell:
    """The decision. HTML shows it as a badge, with the deciding test below it."""
    if decided is None:
        return Cell(UNKNOWN)
    kind, shown = BADGES[decided.verdict]
    rest = words.rests_on(decided)
    small: list[Line] = [(rest,)] if rest else []
    if (p := decided.p_decided) is not None:
        small.append((f"{decided.method}, p = ", Figure(words.number(p, ".2g"), p)))
    return Cell(words.decided(decided), (shown,), tuple(small), badge=kind)


def print_comparison(comparison: Comparison) -> None:
    """On the terminal: accuracy, speed, verdicts and notes of each group, then the runs left out."""
    out = console()
    for group in comparison.groups:
        print_table(settings_table(words.title(group), group, ACCURACY, {}), framed=False)
        speeds = settings_table("", group, SPEED, {})
        if len(speeds.columns) > 1:
            print_table(speeds, framed=False)
        for served in served_tables(group, {}, MAX_WAYS):
            print_table(served, framed=False)
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
