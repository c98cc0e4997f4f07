"""Build the comparison from runs: one group per model, data set and control; one row per setting, aggregated over seeds."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mpx.compare import served, speed
from mpx.compare.commands import commands, compare_command
from mpx.compare.comparison import TEST_SET, Comparison, Estimate, Group, Row, Speedup, Verdict
from mpx.compare.control import AUTO, by_label, by_pair
from mpx.compare.decisions import decisions, values
from mpx.compare.groups import Members, grouped
from mpx.compare.looks import Plan, plan_of
from mpx.compare.metric import Metric, choose_metric
from mpx.compare.names import labels, natural, short
from mpx.compare.notes import looks, notes
from mpx.compare.run import Run
from mpx.compare.statistics import estimate
from mpx.compare.time_to_train import time_verdict, timed
from mpx.compare.verdict import serve_verdict, train_verdict


def compare(
    runs: Sequence[Run], *, study: str, control: str, metric: str, margin: float, confidence: float, folder: Path,
    left_out: Iterable[tuple[str, str]] = (), note: str = "", metric_goal: str = AUTO, margin_is: str = AUTO,
    margin_for: str = TEST_SET,
) -> Comparison:  # fmt: skip
    """runs: one per setting and seed. control: as for mpx.compare.groups.grouped. metric, margin, confidence, note: as in Comparison.
    metric_goal: max, min or auto; margin_is: absolute, relative or auto; margin_for: test_set or population, as in conf/compare.yaml.

    Raises UserError for runs that were made under different plans of looks.
    """
    choose = partial(choose_metric, wanted=metric, goal=metric_goal, margin_is=margin_is)
    runs = [replace(run, served=rows) for run, rows in zip(runs, served.told_apart([run.served for run in runs]), strict=True)]
    found, plan = {pair: labels(theirs) for pair, theirs in by_pair(runs).items()}, plan_of(runs)
    controls = [] if plan is None else [members.control[0] for members in grouped(runs, by_label(runs, plan.control)) if members.control]
    named = {(run.model, run.data, run.setting) for run in controls}
    groups = [
        _group(members, metric, choose, margin, confidence, margin_for, plan, named, *found[members.model, members.data])
        for members in grouped(runs, control)
    ]
    again = compare_command(
        study, control=control, metric=metric, margin=margin, confidence=confidence, metric_goal=metric_goal, margin_is=margin_is,
        margin_for=margin_for,
    )  # fmt: skip
    repeat = (*commands(runs), again)
    return Comparison(study, metric, margin, confidence, tuple(groups), tuple(left_out), folder, repeat, note, margin_for)


def _group(
    members: Members, wanted: str, choose: Callable[[Iterable[Run]], Metric], margin: float, confidence: float,
    margin_for: str, plan: Plan | None, controls: Collection[Sequence[str]], labelled: Mapping[str, str], unused: Iterable[str],
) -> Group:  # fmt: skip
    """choose: the metric of runs. controls: those of the plan. labelled: the labels of settings, by Run.setting. unused: lines about labels
    that name several."""
    runs = [*members.control, *(run for others in members.others.values() for run in others)]
    metric = choose(runs)
    own = {}  # names in tables -> what they would be without labels

    def shown(name: str, run: Run) -> str:
        label = labelled.get(run.setting, name)
        own[label] = name
        return label

    name = shown(short(members.control[0], members.changes), members.control[0]) if members.control else None
    place = speed.usual_place(members.control, [run for others in members.others.values() for run in others])
    rows = [_row(shown(setting, found[0]), found, metric, place, name) for setting, found in members.others.items()]
    if members.control:
        first = _row(name, members.control, metric, place, name)
        decided = decisions(first, rows, metric, margin, confidence, margin_for, plan)
        rows = [replace(row, decision=decided.get(row.setting)) for row in rows]
        rows = [replace(row, **_faster(row, first, confidence)) for row in rows]
        rows = [first, *sorted(rows, key=_fastest_first)]
    else:
        rows.sort(key=lambda row: natural(row.setting))
    spot = served.usual_spot(rows, name, metric.name)
    rows = [_served(row, spot, metric) for row in rows]
    group = Group(members.model, members.data, name, tuple(rows), "", "", (), metric, members.changes, spot)
    meant = [f"{label} is {setting}" for label, setting in own.items() if label != setting]
    said = (*notes(group, members, wanted, margin, margin_for), *looks(group, members, plan, controls, margin, confidence, margin_for))
    group = replace(group, notes=(*meant, *unused, *said))
    verdicts = {"train_verdict": train_verdict(group, margin, confidence), "serve_verdict": serve_verdict(group, confidence)}
    return replace(group, **verdicts, time_verdict=time_verdict(group, confidence))


def _row(setting: str, runs: Sequence[Run], metric: Metric, place: speed.Place | None, control: str | None) -> Row:
    """A row without decision, speed-up and speed of serving, which need the other rows."""
    runs = sorted(runs, key=lambda run: run.seed)
    completed = [run for run in runs if run.status == "completed"]
    own = speed.own_place(place, completed)
    counted = speed.at(own, completed)
    throughput, times = speed.throughput(counted), timed(counted)
    return Row(
        setting=setting,
        runs=tuple(runs),
        diverged=len(runs) - len(completed),
        metric=estimate(list(values(runs, metric).values())),
        decision=None,
        throughput=throughput,
        shared=None if throughput else speed.shared(completed),
        speedup=None,
        speed_note=speed.note(runs, place, None if setting == control else control),
        peak_gib=_estimate(speed.on_one_device(own, completed), "peak_gib"),
        **{name: _estimate(completed, name) for name in ("skipped_steps", "density")},
        time_to_train_s=times or _estimate(completed, "time_to_train_s"),
        serve=None,
        underflow=_estimate(completed, "gradient_underflow"),
        timed=times,
    )


def _served(row: Row, spot: served.Spot | None, metric: Metric) -> Row:
    found = served.fastest(row, spot, metric.name)
    return row if found is None else replace(row, serve=found.counted, served_by=found.way)


def _estimate(runs: Iterable[Run], name: str) -> Estimate | None:
    return estimate([value for run in runs if (value := getattr(run, name)) is not None])


def _faster(row: Row, control: Row, confidence: float) -> dict[str, Speedup | None]:
    if row.speed_note:
        return {}
    same_length = row.decision is None or row.decision.verdict != Verdict.NOT_COMPARABLE
    return {
        "speedup": speed.ratio(row.throughput, control.throughput, confidence),
        "sooner": speed.ratio(control.timed, row.timed, confidence) if same_length else None,
    }


def _fastest_first(row: Row) -> tuple:
    return (row.speedup is None, -row.speedup.ratio if row.speedup else 0.0, natural(row.setting))
