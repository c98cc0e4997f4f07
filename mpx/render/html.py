"""report.html: one file that needs no network and no script: verdicts, tables, plots, every run, what it ran on, how to repeat it."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from mpx.compare.batch_scaling import growths, sizes
from mpx.compare.comparison import METRICS, Comparison, Group, Row, Run
from mpx.compare.words import SHARED, UNKNOWN, all_runs, environment_rows, margin, metric_spec, places, rate_spec, title
from mpx.render import cells
from mpx.render.plots.draw import file_start
from mpx.render.plots.looks import Look
from mpx.render.plots.picture import Picture, inline

CSS = Path(__file__).with_name("page.css")
FEW_RUNS = 60  # shown at once; more are folded away
READING = """<p><b>No loss</b>: the hypothesis that the setting is worse than the control by the margin or more is rejected by a one-sided
t test over seeds, paired where both have the same seeds, else Welch's, with Holm's correction over the settings of a table. <b>Loss</b>:
the opposite is shown, or a larger share of the seeds diverged than of the control's. <b>Not enough seeds</b>: neither is shown. p is
that of the test which decided, or, where none did, of the test for no loss. ± is one sample standard
deviation over seeds; what follows in small print below a difference or a speed-up is its confidence interval. Speeds count from runs that
had the device to themselves and did not emulate their format, at the control's batch size and device; those marked <i>shared</i> were
measured while others may have used the device, as on every CPU, and are compared with nothing. Rest the pointer on a figure to
see it in full; results.csv holds the same, run by run.</p>"""


def html_report(comparison: Comparison, drawn: Sequence[Sequence[Picture]], looks: Mapping[str, Look], growth: Picture | None) -> str:
    """drawn: the pictures of each group. growth: that of all groups by batch size."""
    parts = [
        _head(comparison),
        *(_verdict(group, linked=len(comparison.groups) > 1) for group in comparison.groups),
        _growth(comparison, looks, growth),
        *(_group(group, comparison, found, looks) for group, found in zip(comparison.groups, drawn, strict=True)),
        _left_out(comparison.left_out),
        _commands(comparison.commands),
        _environment(comparison),
        f"<section><h2>How to read this</h2>{READING}</section>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(comparison.study)}: mpx report</title>\n'
        f"<style>\n{CSS.read_text(encoding='utf-8')}</style>\n"
        "</head>\n<body>\n" + "\n".join(part for part in parts if part) + "\n</body>\n</html>\n"
    )


def _head(comparison: Comparison) -> str:
    runs = all_runs(comparison)
    settings = sum(len(group.rows) for group in comparison.groups)
    pairs = "; ".join(title(group) for group in comparison.groups) if len(comparison.groups) <= 4 else f"{len(comparison.groups)} groups"
    devices = ", ".join(sorted({run.device for run in runs if run.device})) or "an unknown device"
    return (
        f'<header><h1>{escape(comparison.study)}</h1>\n<p class="about">{len(runs)} runs of {settings} settings: {escape(pairs)}. '
        f"On {escape(devices)}; intervals and decisions at {comparison.confidence * 100:g} % confidence.</p></header>"
    )


def _verdict(group: Group, *, linked: bool) -> str:
    name = escape(title(group))
    heading = f'<a href="#{_anchor(group)}">{name}</a>' if linked else name
    serve = f"\n<p>{escape(group.serve_verdict)}</p>" if group.serve_verdict else ""
    return f'<div class="verdict"><h3>{heading}</h3>\n<p class="train">{escape(group.train_verdict)}</p>{serve}</div>'


def _growth(comparison: Comparison, looks: Mapping[str, Look], growth: Picture | None) -> str:
    if growth is None:
        return ""
    lines = growths(comparison)
    columns = sizes(lines)
    rows = (
        (escape(line.of), cells.setting(line.setting, looks.get(line.setting)), *(cells.speedup(line.speedups.get(s)) for s in columns))
        for line in lines
    )
    listed = cells.table(("", "setting", *(f"batch {size:,}" for size in columns)), rows, growth.title, texts=(1,))
    return f"<section><h2>{escape(growth.title)}</h2>{listed}{_figure(growth)}</section>"


def _anchor(group: Group) -> str:
    return escape(file_start(group))


def _group(group: Group, comparison: Comparison, drawn: Sequence[Picture], looks: Mapping[str, Look]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in group.notes)
    about = f"Compared by {METRICS[group.metric].words}, with a margin of {margin(group, comparison)}. {places(group)}".strip()
    return "\n".join(
        (
            f'<section id="{_anchor(group)}"><h2>{escape(title(group))}</h2>',
            f"<p>{escape(about)}</p>" + (f"<ul>{notes}</ul>" if notes else ""),
            _settings(group, looks),
            *(_figure(one) for one in drawn if one.svg is not None),
            _not_drawn([one for one in drawn if one.svg is None]),
            _runs(group, comparison.folder, looks),
            "</section>",
        )
    )


def _settings(group: Group, looks: Mapping[str, Look]) -> str:
    metric = METRICS[group.metric]
    heads = (
        "setting", "seeds", metric.words, "difference", "decision", "samples/s", "speed-up", "peak GiB",
        "train time, s", "skipped steps", "gradients that vanish", "density", "served samples/s",
    )  # fmt: skip
    return cells.table(heads, (_setting(row, group, looks) for row in group.rows), f"Settings of {title(group)}", texts=(4,))


def _setting(row: Row, group: Group, looks: Mapping[str, Look]) -> tuple[str, ...]:
    diverged = f"<small>{row.diverged} diverged</small>" if row.diverged else ""
    ratio = cells.speedup(row.speedup)
    if row.speedup is None and row.setting == group.control and row.throughput is not None:
        ratio = "control"
    return (
        cells.setting(row.setting, looks.get(row.setting)), f"{len(row.runs)}{diverged}",
        cells.estimate(row.metric, metric_spec(group.metric)), cells.difference(row.decision, group.metric),
        cells.decision(row.decision, control=row.setting == group.control), _rate(row), ratio,
        cells.estimate(row.peak_gib, ".2f"), cells.estimate(row.time_to_train_s, ",.1f"), cells.estimate(row.skipped_steps, ",.1f"),
        cells.estimate(row.underflow, ".3%"), cells.estimate(row.density, ".3f"), cells.estimate(row.serve),
    )  # fmt: skip


def _rate(row: Row) -> str:
    if row.throughput is None and row.shared is not None:
        return cells.estimate(row.shared) + f"<small>{SHARED}</small>"
    return cells.estimate(row.throughput)


def _figure(one: Picture) -> str:
    return f"<figure><div>{inline(one)}</div><figcaption>{escape(one.caption)}</figcaption></figure>"


def _not_drawn(missing: Sequence[Picture]) -> str:
    items = "".join(f"<li>{escape(one.title)}: {escape(one.reason)}.</li>" for one in missing)
    return f'<div class="about"><p>Not drawn:</p><ul>{items}</ul></div>' if missing else ""


def _runs(group: Group, study: Path, looks: Mapping[str, Look]) -> str:
    metric = METRICS[group.metric]
    heads = (
        "run", "seed", "status", metric.words, "samples/s", "step, ms", "train time, s", "peak GiB", "batch size",
        "loss scale", "skipped steps", "gradients that vanish", "density", "magnitude kept", "record",
    )  # fmt: skip
    rows = [_run(row.setting, run, group.metric, study, looks) for row in group.rows for run in row.runs]
    listed = cells.table(heads, rows, f"Runs of {title(group)}", texts=(2,))
    return f"<details{' open' if len(rows) <= FEW_RUNS else ''}><summary>Every run ({len(rows)})</summary>{listed}</details>"


def _run(setting: str, run: Run, metric: str, study: Path, looks: Mapping[str, Look]) -> tuple[str, ...]:
    mark = "emulated" if run.emulated else "" if run.exclusive else SHARED
    rate = UNKNOWN
    if run.train_samples_per_s is not None:
        rate = cells.figure(run.train_samples_per_s, rate_spec(run.train_samples_per_s)) + (f"<small>{mark}</small>" if mark else "")
    return (
        cells.setting(setting, looks.get(setting)), str(run.seed), escape(run.status),
        cells.figure(run.metrics.get(metric), metric_spec(metric)), rate,
        cells.figure(run.step_ms_p50, ".2f"), cells.figure(run.time_to_train_s, ",.1f"), cells.figure(run.peak_gib, ".2f"),
        cells.figure(run.batch_size, "d"), cells.figure(run.loss_scale_final, "g"), cells.figure(run.skipped_steps, ",d"),
        cells.figure(run.gradient_underflow, ".3%"), cells.figure(run.density, ".3f"), cells.figure(run.kept_magnitude, ".1%"),
        _link(run, study),
    )  # fmt: skip


def _link(run: Run, study: Path) -> str:
    """To the record and the folder, where they are still there; relative, so that the study may be moved as a whole."""
    if run.folder is None or not (study / run.folder / "result.json").is_file():
        return UNKNOWN
    place = escape(quote(run.folder))
    return f'<a href="{place}/result.json">json</a> <a href="{place}/">folder</a>'


def _left_out(left_out: Sequence[tuple[str, str]]) -> str:
    if not left_out:
        return ""
    rows = ((f"<code>{escape(folder)}</code>", escape(reason)) for folder, reason in left_out)
    return f"<section><h2>Left out ({len(left_out)})</h2>{cells.table(('folder', 'why'), rows, 'Runs left out', texts=(1,))}</section>"


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    return f"<section><h2>To repeat it</h2><pre><code>{escape(chr(10).join(commands))}</code></pre></section>"


def _environment(comparison: Comparison) -> str:
    rows = environment_rows(all_runs(comparison))
    if not rows:
        return ""
    return "<section><h2>Environment</h2><dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in rows) + "</dl></section>"
