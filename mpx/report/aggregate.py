"""From runs to a comparison: per model, data set and control one group, per setting one row aggregated over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mpx.report import speed
from mpx.report.commands import commands
from mpx.report.comparison import METRICS, Comparison, Decision, Group, Metric, Row, Run
from mpx.report.groups import Members, grouped, short
from mpx.report.statistics import Finding, estimate, examine, holm, more_seeds
from mpx.report.verdict import serve_verdict, train_verdict


def compare(
    runs: Sequence[Run], *, study: str, control: str, metric: str, margin: float, confidence: float, folder: Path,
    left_out: Iterable[tuple[str, str]] = (),
) -> Comparison:  # fmt: skip
    """runs: one per setting and seed. control: precision-sparsity, as fp32-dense. margin, confidence: as in Comparison."""
    groups = [_group(members, control, metric, margin, confidence) for members in grouped(runs, control)]
    return Comparison(study, metric, margin, confidence, tuple(groups), tuple(left_out), folder, commands(runs))


def _group(members: Members, control: str, wanted: str, margin: float, confidence: float) -> Group:
    runs = [*members.control, *(run for others in members.others.values() for run in others)]
    metric = _metric(runs, wanted)
    name = short(members.control[0], members.changes) if members.control else None
    place = speed.usual_place(members.control)
    rows = [_row(setting, found, metric, place, name) for setting, found in members.others.items()]
    if members.control:
        first = _row(name, members.control, metric, place, name)
        decisions = _decisions(first, rows, metric, margin, confidence)
        rows = [replace(row, decision=decisions.get(row.setting), speedup=_speedup(row, first, confidence)) for row in rows]
        rows = [first, *sorted(rows, key=_fastest_first)]
    else:
        rows.sort(key=lambda row: row.setting)
    group = Group(members.model, members.data, name, tuple(rows), "", "", (), metric.name, members.changes)
    group = replace(group, notes=tuple(_notes(group, control, wanted, place)))
    verdicts = {"train_verdict": train_verdict(group, margin, confidence), "serve_verdict": serve_verdict(group, confidence)}
    return replace(group, **verdicts)


def _metric(runs: Iterable[Run], wanted: str) -> Metric:
    """The one wanted, or the other one where only that was measured: language models have a perplexity and no accuracy."""
    there = {name for run in runs for name in run.metrics}
    other = next((name for name in METRICS if name != wanted and name in there), wanted)
    return METRICS[wanted if wanted in there else other]


def _row(setting: str, runs: Sequence[Run], metric: Metric, place: tuple | None, control: str | None) -> Row:
    """Decision and speed-up are filled in when the control's row is there."""
    runs = sorted(runs, key=lambda run: run.seed)
    completed = [run for run in runs if run.status == "completed"]
    is_control = control is None or setting == control
    here = speed.at(place, completed) if place else []
    return Row(
        setting=setting,
        runs=tuple(runs),
        diverged=len(runs) - len(completed),
        metric=estimate(list(_values(runs, metric).values())),
        decision=None,
        throughput=speed.throughput(here or speed.at(speed.usual_place(completed), completed)),
        speedup=None,
        speed_note=speed.note(runs, place, control or "", is_control),
        **{name: _estimate(completed, name) for name in ("peak_gib", "time_to_train_s", "skipped_steps", "density")},
        serve=_estimate(completed, "serve_samples_per_s"),
    )


def _values(runs: Iterable[Run], metric: Metric) -> dict[int, float]:
    """Seed -> value, of the runs that completed."""
    return {run.seed: run.metrics[metric.name] for run in runs if run.status == "completed" and metric.name in run.metrics}


def _estimate(runs: Iterable[Run], name: str):
    return estimate([value for run in runs if (value := getattr(run, name)) is not None])


def _speedup(row: Row, control: Row, confidence: float):
    return None if row.speed_note else speed.ratio(row.throughput, control.throughput, confidence)


def _fastest_first(row: Row) -> tuple:
    return (row.speedup is None, -row.speedup.ratio if row.speedup else 0.0, row.setting)


def _decisions(control: Row, rows: Iterable[Row], metric: Metric, margin: float, confidence: float) -> dict[str, Decision]:
    """Setting -> decision, corrected by Holm over all settings that could be tested; none when the control never completed."""
    theirs = _values(control.runs, metric)
    if not theirs:
        return {}
    rows = {row.setting: row for row in rows if row.metric or row.diverged}
    findings = {
        name: examine(mine, theirs, metric, margin, confidence) for name, row in rows.items() if (mine := _values(row.runs, metric))
    }
    tested = {name: finding for name, finding in findings.items() if finding.p_no_loss is not None}
    no_loss = dict(zip(tested, holm([finding.p_no_loss for finding in tested.values()]), strict=True))
    loss = dict(zip(tested, holm([finding.p_loss for finding in tested.values()]), strict=True))
    level = 1 - confidence
    return {name: _decision(row, control, findings.get(name), no_loss, loss, level) for name, row in rows.items()}


def _decision(
    row: Row, control: Row, finding: Finding | None, no_loss: Mapping[str, float], loss: Mapping[str, float], level: float
) -> Decision:
    """Seeds that diverged count against a setting: with a larger share of them than the control it loses, whatever the others say."""
    reason = _diverged(row, control)
    if finding is None:
        return Decision("loss", None, None, None, None, None, "none", None, reason or "no run completed")
    name = row.setting
    verdict = "not enough seeds to tell"
    if reason or (name in loss and loss[name] < level):
        verdict = "loss"
    elif name in no_loss and no_loss[name] < level:
        verdict = "no loss"
    more = more_seeds(finding, level / max(1, len(no_loss))) if verdict.startswith("not") else None
    return Decision(
        verdict, finding.difference, finding.low, finding.high, finding.p_no_loss, no_loss.get(name), finding.method, more, reason
    )  # fmt: skip


def _diverged(row: Row, control: Row) -> str | None:
    if row.diverged * len(control.runs) <= control.diverged * len(row.runs):
        return None
    there = f", of {control.setting} {control.diverged} of {len(control.runs)}" if control.diverged else ""
    return f"{row.diverged} of {len(row.runs)} seeds diverged{there}"


def _notes(group: Group, control: str, wanted: str, place: tuple | None) -> list[str]:
    """What the reader must know before believing a figure."""
    metric, notes = METRICS[group.metric], []
    if group.metric != wanted:
        kind = "relative to the control's" if metric.relative else "absolute"
        notes.append(f"compared by {metric.words}, since no run here has {wanted}; the margin is {kind}")
    if group.control is None:
        notes.append(f"no run of {control} here to compare with")
    else:
        notes += _about_control(group.rows[0], metric, place)
    notes += [note for row in group.rows for note in _about_row(row, group, metric)]
    for reason in dict.fromkeys(row.speed_note for row in group.rows if row.speed_note):
        settings = ", ".join(row.setting for row in group.rows if row.speed_note == reason)
        notes.append(f"{settings}: speed not compared, {reason}")
    versions = sorted({str(run.environment["torch"]) for row in group.rows for run in row.runs if "torch" in run.environment})
    if len(versions) > 1:
        notes.append(f"different versions of PyTorch: {', '.join(versions)}")
    return notes


def _about_control(control: Row, metric: Metric, place: tuple | None) -> list[str]:
    notes = []
    if control.diverged:
        rest = "decisions rest on the others" if control.metric else "nothing can be decided"
        notes.append(f"the control diverged in {control.diverged} of {len(control.runs)} seeds; {rest}")
    elif control.metric is None:
        notes.append(f"no run of the control has {metric.name}; nothing can be decided")
    counted = speed.counted(control.runs)
    if len(counted) > len(speed.at(place, counted)):
        notes.append(f"the control ran on several devices or batch sizes; its speed is that on {place[0]} with batch size {place[1]}")
    return notes


def _about_row(row: Row, group: Group, metric: Metric) -> list[str]:
    notes = []
    completed = [run for run in row.runs if run.status == "completed"]
    if len(_values(completed, metric)) < len(completed):
        notes.append(f"{row.setting}: {len(completed) - len(_values(completed, metric))} completed runs have no {metric.name}")
    if row.decision and row.decision.method == "paired t":
        shared = len(_values(row.runs, metric).keys() & _values(group.rows[0].runs, metric).keys())
        if shared < max(row.metric.n, group.rows[0].metric.n):
            notes.append(f"{row.setting}: compared over the {shared} seeds that it shares with the control")
    return notes
