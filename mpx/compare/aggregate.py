"""Build the comparison from runs: one group per model, data set and control; one row per setting, aggregated
over seeds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mpx.compare import served, speed
from mpx.compare.comparison import Comparison, Estimate, Group, Question, Row, Verdict, estimate
from mpx.compare.decisions import decide, values
from mpx.compare.groups import (
    Members,
    by_label,
    by_pair,
    grouped,
    labels,
    natural,
    refuse_other_contents,
    short,
)
from mpx.compare.looks import plan_of
from mpx.compare.notes import notes
from mpx.compare.run import AUTO, Run
from mpx.compare.verdict import evidence, serve_verdict, time_verdict, train_verdict
from mpx.compare.words import commands
from mpx.errors import UserError, nearest
from mpx.runs.result import GOALS, METRICS, Metric, metric_name, metric_of, to_print
from mpx.settings.compare import DECIDE, DEFAULTS, compare_command

# what mpx's own models log in validation and test -> whether it should rise
OF_MPX = {"accuracy": 1, "loss": -1, "perplexity": -1}


def question(**how: str | float) -> Question:
    """A question with the keys of conf/compare.yaml that are not at their defaults. Other keys do not
    count.
    """
    return Question(**{key: how.get(key, default) for key, default in DEFAULTS.items()})


def compare(
    runs: Sequence[Run], asked: Question, *, study: str, folder: Path, left_out: Iterable[tuple[str,
    str]] = ()
) -> Comparison:  # fmt: skip
    """runs: one per setting and seed. Raises UserError for runs that were made under different plans of
    looks.
    """
    refuse_other_contents(runs)
    asked = replace(asked, plan=(plan := plan_of(runs)))
    control = by_label(runs, plan.control if plan is not None and asked.control == AUTO else asked.control)
    names = {pair: labels(of_pair) for pair, of_pair in by_pair(runs).items()}
    metric = choose(runs, asked) if asked.metric != AUTO else None
    groups = [
        _group(members, metric or choose(members.runs, asked), asked, names[members.model, members.data])
        for members in grouped(runs, control)
    ]
    again = compare_command(study, **{key: getattr(asked, key) for key in DECIDE})
    return Comparison(study, asked, tuple(groups), tuple(left_out), folder, (*commands(runs), again))


def choose(runs: Iterable[Run], asked: Question) -> Metric:
    """The metric that is asked for; with AUTO the one that the runs declare, or else the perplexity or the
    accuracy. With margin_is=auto the margin is relative where the metric should fall.

    Raises UserError for a metric that no run has, if nothing says whether it should rise or fall, and for a
    relative margin of values around zero.
    """
    runs = list(runs)
    measured = {name for run in runs for name in run.metrics}
    declared = dict.fromkeys(run.metric for run in runs if run.metric is not None)
    usual = next(
        (name for name in (*declared, "test/perplexity") if name in measured),
        next(iter(declared), "test/accuracy"),
    )
    name = usual if asked.metric == AUTO else metric_name(asked.metric)
    if asked.metric != AUTO and name not in measured:
        known = ", ".join(sorted(measured)) or "none"
        raise UserError(
            f"metric={asked.metric}: no run has it.{nearest(asked.metric, measured)} There are: {known}."
        )
    sign = _sign(name, runs, asked.metric_goal)
    metric = replace(metric_of(name, "min" if sign < 0 else "max"), sign=sign)
    values = [run.metrics[name] for run in runs if name in run.metrics]
    relative = metric.relative if asked.margin_is == AUTO else asked.margin_is == "relative"
    if relative and values and min(values) < 0 < max(values):
        raise UserError(
            f"metric={name} has values below and above zero, of which a share is no margin. Give one in its "
            "unit, with margin_is=absolute."
        )
    return replace(to_print(metric, values), relative=relative)


def _sign(name: str, runs: list[Run], goal: str) -> int:
    """goal: max, min, or AUTO: as the runs say."""
    if goal != AUTO:
        return GOALS[goal]
    known = METRICS[name].sign if name in METRICS else OF_MPX.get(name.rpartition("/")[2])
    said = {GOALS[run.metric_goal] for run in runs if run.metric == name and run.metric_goal is not None}
    signs: set[int | None] = {*said} or {known}
    if len(signs) == 1 and (sign := signs.pop()) is not None:
        return sign
    why = "some runs say that it should rise, others that it should fall"
    raise UserError(
        f"metric={name}: {why if said else 'no run says whether it should rise or fall'}. Add "
        "metric_goal=max or metric_goal=min."
    )


def _group(members: Members, metric: Metric, asked: Question, labelled: dict[str, str]) -> Group:
    """labelled: the labels of settings, by Run.setting."""
    place = speed.usual_place(members.control, [run for runs in members.others.values() for run in runs])
    control = members.control[0] if members.control else None
    plain = short(control, members.changes) if control else None
    name = labelled.get(control.setting, plain) if control else None
    rows = [
        _row(labelled.get(runs[0].setting, setting), runs, metric, place, name)
        for setting, runs in members.others.items()
    ]
    if name is not None:
        first = _row(name, members.control, metric, place, name)
        decided = decide(first, rows, metric, asked)
        rows = [
            _faster(replace(row, decision=decided.get(row.setting)), first, asked.confidence) for row in rows
        ]
        rows = [first, *sorted(rows, key=_fastest_first)]
    else:
        rows.sort(key=lambda row: natural(row.setting))
    spot = served.usual_spot(rows, name, metric.name)
    rows = [_served(row, spot, metric) for row in rows]
    group = Group(members.model, members.data, name, tuple(rows), "", "", (), metric, members.changes, spot)
    settings = {plain: name} | {
        setting: labelled.get(runs[0].setting, setting) for setting, runs in members.others.items()
    }
    meant = [f"{label} is {setting}" for setting, label in settings.items() if label != setting]
    group = replace(group, notes=(*meant, *notes(group, members, asked)))
    return replace(
        group,
        train_verdict=train_verdict(group, asked),
        evidence=evidence(group, asked),
        serve_verdict=serve_verdict(group, asked),
        time_verdict=time_verdict(group, asked),
    )


def _row(
    setting: str, runs: Sequence[Run], metric: Metric, place: speed.Place | None, control: str | None
) -> Row:
    """A row without decision, speed-up and speed of serving, which need the other rows."""
    runs = sorted(runs, key=lambda run: run.seed)
    completed = [run for run in runs if run.completed]
    at_place = speed.place_for(completed, place)
    counted = speed.at(at_place, completed)
    throughput, times = speed.throughput(counted), speed.timed(counted)
    shared = [] if throughput else speed.shared(completed)
    row = Row(
        setting=setting,
        runs=tuple(runs),
        metric=None,
        throughput=throughput,
        shared=speed.throughput(shared),
        cpu_used_by_others=_estimate(shared, "cpu_used_by_others"),
        speed_note=speed.note(runs, place, None if setting == control else control),
        peak_gib=_estimate(speed.on_one_device(at_place, completed), "peak_gib"),
        skipped_steps=_estimate(completed, "skipped_steps"),
        density=_estimate(completed, "density"),
        time_to_train_s=times or _estimate(completed, "time_to_train_s"),
        underflow=_estimate(completed, "gradient_underflow"),
        timed=times,
    )
    return replace(row, metric=estimate(list(values(row, metric).values())))


def _served(row: Row, spot: served.Spot | None, metric: Metric) -> Row:
    serving = served.fastest(row, spot, metric.name)
    return row if serving is None else replace(row, serve=serving.counted, served_by=serving.way)


def _estimate(runs: Iterable[Run], name: str) -> Estimate | None:
    return estimate([value for run in runs if (value := getattr(run, name)) is not None])


def _faster(row: Row, control: Row, confidence: float) -> Row:
    """With its speed-up and its saving of time to train over the control's, where they are compared."""
    if row.speed_note:
        return row
    speedup, sooner = (
        speed.ratio(*pair, confidence)
        for pair in ((row.throughput, control.throughput), (control.timed, row.timed))
    )
    other_length = row.decision is not None and row.decision.verdict == Verdict.NOT_COMPARABLE
    return replace(row, speedup=speedup, sooner=None if other_length else sooner)


def _fastest_first(row: Row) -> tuple:
    return (row.speedup is None, -row.speedup.ratio if row.speedup else 0.0, natural(row.setting))
