"""Notes on a group: the caveats that a reader must know to interpret its figures."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from mpx.compare import defaults, speed
from mpx.compare.commands import DEFAULTS
from mpx.compare.comparison import POPULATION, TEST_SET, Group, Row, Verdict
from mpx.compare.control import AUTO
from mpx.compare.decisions import seeds_of_both, values
from mpx.compare.groups import Members
from mpx.compare.looks import Plan
from mpx.compare.metric import METRICS, Metric, judged_by
from mpx.compare.own_loops import notes_on_doubts
from mpx.compare.run import CODE_HASHES, SAMPLES, Run
from mpx.compare.sampled import notes_on
from mpx.printing import how_many
from mpx.record.result import CHANGED_AFTER, MEANS_FROM, TRAINED_BEFORE, VALIDATED_AT, metric_name, stage_of

NARROW = (
    "no loss by a narrow decision: the one-sided test rules out a loss of the margin, but the two-sided interval of the difference "
    "includes it"
)

WIDE = 0.1  # share of the control's value above which the default margin is said
WILD = 5  # standard deviation of the control's seeds, in margins, above which a comparison says little
ALONE = "speed measured alone after the sweep, once for all seeds together, so it has no interval"


def notes(group: Group, members: Members, wanted: str, margin: float, margin_for: str) -> list[str]:
    """members: the source of the group. wanted: the metric that the user asked for. margin, margin_for: as in Comparison."""
    metric, found = group.metric, _about_metric(group, wanted, margin)
    found += [members.note] if members.note else []
    found += _about_control(group.rows[0], metric) + _scatter(group.rows[0], metric, margin) if group.control else []
    found += _of_settings(group, lambda row: _about_row(row, group, metric))
    found += _of_settings(group, lambda row: [NARROW] if _narrow(row, group.rows[0], metric, margin) else [])
    wide = margin_for == POPULATION or any(row.decision and row.decision.has_population for row in group.rows)
    found += _of_settings(group, lambda row: notes_on(row, wanted=wide))
    runs = group.runs
    between_runs = (defaults.changed(runs), _code_changed(runs), _other_samples(runs), _other_torch(runs))
    return [*found, *_about_speed(group), *filter(None, between_runs)]


def _about_metric(group: Group, wanted: str, margin: float) -> list[str]:
    metric, found = group.metric, []
    if wanted != AUTO and metric_name(wanted) != metric.name:
        kind = "relative to the control's" if metric.relative else "absolute"
        found.append(f"compared by {metric.words}, since no run here has {wanted}; the margin is {kind}")
    if not metric.relative and metric.name in METRICS and any(row.metric and row.metric.mean > 1 for row in group.rows):
        percent = "for one point of percent, add margin=1 margin_is=absolute"
        found.append(f"{metric.words} is above 1, so no fraction: the margin of {margin:g} is in its own unit; {percent}")
    return found + ([note] if group.control and (note := _wide_margin(group.rows[0], metric, margin)) else [])


def _about_speed(group: Group) -> list[str]:
    """Why speeds are not compared, or have no interval."""
    found = []
    for reason in dict.fromkeys(row.speed_note for row in group.rows if row.speed_note):
        rows = [row for row in group.rows if row.speed_note == reason]
        marked = "; samples/s marked (shared) and times are as measured" if any(row.shared for row in rows) else ""
        found.append(f"{_who(rows, group)}: speed not compared, {reason}{marked}")
    single = [row for row in group.rows if row.throughput and row.throughput.n == 1]
    alone = [row for row in single if any(run.measured_alone for run in row.runs)]
    return [*found, f"{_who(alone, group)}: {ALONE}"] if alone else found


def _of_settings(group: Group, texts: Callable[[Row], list[str]]) -> list[str]:
    """The notes on each row, one line for all rows with the same."""
    found: dict[str, list[Row]] = {}
    for row in group.rows:
        for text in texts(row):
            found.setdefault(text, []).append(row)
    return [f"{_who(rows, group)}: {text}" for text, rows in found.items()]


def _who(rows: Sequence[Row], group: Group) -> str:
    return "all settings" if 1 < len(rows) == len(group.rows) else ", ".join(row.setting for row in rows)


def _code_changed(runs: Sequence[Run]) -> str | None:
    digests: dict[str, set[str]] = {}
    for run in runs:
        for name, digest in run.environment.get(CODE_HASHES, {}).items():
            digests.setdefault(name, set()).add(digest)
    names = [name for name, found in digests.items() if len(found) > 1]
    return f"the file of {', '.join(names)} was changed between runs, so a difference may come from that" if names else None


def _other_samples(runs: Sequence[Run]) -> str | None:
    """The files of a data set may be others though its name and settings are the same."""
    found: dict[tuple, set[str]] = {}
    for run in runs:
        of_data = tuple((key, value) for key, value in sorted(run.changes.items()) if key.startswith(("data.", "model.")))
        for part, checksum in run.environment.get(SAMPLES, {}).items():
            found.setdefault((part, of_data), set()).add(checksum)
    several = any(len(checksums) > 1 for checksums in found.values())
    return "runs with the same settings of the data had other samples, so a difference may come from these" if several else None


def _other_torch(runs: Sequence[Run]) -> str | None:
    versions = sorted({str(run.environment["torch"]) for run in runs if "torch" in run.environment})
    return f"different versions of PyTorch: {', '.join(versions)}" if len(versions) > 1 else None


def _narrow(row: Row, control: Row, metric: Metric, margin: float) -> bool:
    """Whether the one-sided test says no loss although the wider two-sided interval includes a loss of the margin."""
    decision = row.decision
    if decision is None or decision.verdict != Verdict.NO_LOSS or decision.tested[0] is None:
        return False
    worst = min(metric.sign * bound for bound in decision.tested)
    return worst <= -metric.allowed(margin, control.metric.mean)


def _wide_margin(control: Row, metric: Metric, margin: float) -> str | None:
    """The default margin is a point of an accuracy. Of a metric of another scale, it may be most of the value."""
    mean = abs(control.metric.mean) if control.metric else 0.0
    if metric.relative or margin != DEFAULTS["margin"] or not 0 < WIDE * mean < margin:
        return None
    share = "more than all" if margin > mean else f"{100 * margin / mean:.2g} %"
    return f"the default margin of {margin:g} is {share} of {control.setting}'s {metric.words}; choose one that fits by margin="


def _about_control(control: Row, metric: Metric) -> list[str]:
    if control.diverged:
        rest = "decisions rest on the others" if control.metric else "nothing can be decided"
        return [f"the control diverged in {control.diverged} of {len(control.runs)} seeds; {rest}", *_around_zero(control, metric)]
    if control.metric:
        return _around_zero(control, metric)
    there = sorted({name for run in control.runs for name in run.metrics})
    choose = f"; choose another by metric=, of {', '.join(there)}" if there else ""
    return [f"no run of the control has {metric.name}; nothing can be decided{choose}"]


def _scatter(control: Row, metric: Metric, margin: float) -> list[str]:
    found = control.metric
    allowed = metric.allowed(margin, found.mean) if found else 0.0
    if found is None or found.std is None or found.std <= WILD * allowed:
        return []
    seeds = values(control.runs, metric).values()
    ends = f"{min(seeds):{metric.spec}} to {max(seeds):{metric.spec}}"
    return [f"the control's seeds scatter so much ({ends}, while the margin is {allowed:.3g}) that the comparison says little"]


def _around_zero(control: Row, metric: Metric) -> list[str]:
    found = values(control.runs, metric).values()
    if not metric.relative or not found or not min(found) < 0 < max(found):
        return []
    absolute = "give one in its unit, as margin=0.01 margin_is=absolute"
    return [f"the control's {metric.words} is below and above zero, and a share of it is no margin; {absolute}"]


def _about_row(row: Row, group: Group, metric: Metric) -> list[str]:
    found = []
    completed = [run for run in row.runs if run.status == "completed"]
    if missing := sum(metric.name not in run.metrics for run in completed):
        found.append(f"{metric.name} is missing in {missing} of {how_many(len(completed), 'completed run')}")
    found += _about_values(completed, metric)
    found += notes_on_doubts(row.runs, completed)
    if before := [run.environment[TRAINED_BEFORE] for run in row.runs if TRAINED_BEFORE in run.environment]:
        settings = ", ".join(sorted({word for words in before for word in map(str, words)}))
        of_runs = f"{len(before)} of {how_many(len(row.runs), 'run')}"
        found.append(f"{of_runs} continued a checkpoint that was trained with {settings}, so the results are not of this setting alone")
    if row.decision and row.metric and (shared := seeds_of_both(row, group.rows[0], metric)):
        found.append(f"{metric.words} compared over the {how_many(shared, 'seed')} shared with the control")
    if len(ways := Counter(run.compiled or "not compiled" for run in completed)) > 1:
        each = ", ".join(f"{number} {way}" for way, number in ways.items())
        more = "so their speed and rounding differ; set trainer.compile to have all alike"
        found.append(f"not all seeds compiled alike ({each}), {more}")
    place = speed.own_place(speed.place_in(group), completed)
    if row.throughput and len(counted := speed.at(place, completed)) < len(completed):
        others = "; ".join(f"{number}: {why}" for why, number in speed.left_out(place, completed).items())
        found.append(f"speed of {len(counted)} of {len(completed)} completed runs, without {others}")
    if row.throughput and (again := sum(run.resumed for run in completed)):
        found.append(f"time to train compared without {again} of {len(completed)} runs, which resumed, maybe elsewhere")
    return found


def _about_values(completed: Sequence[Run], metric: Metric) -> list[str]:
    """Where a value is not of the end of the training, as others are."""
    stages = {
        VALIDATED_AT: ("val", lambda at: "is of weights from before the last step, as step {} of {}".format(*at)),
        CHANGED_AFTER: ("val", lambda _: "is of weights that the training's end replaced before the test"),
        MEANS_FROM: ("train", lambda first: f"is the mean over a part of the last epoch, as from step {first} on"),
    }
    found = []
    for key, (stage, say) in stages.items():
        known = [run.environment[key] for run in completed if key in run.environment and metric.name in run.metrics]
        if known and stage_of(metric.name) == stage:
            found.append(f"{metric.words} of {len(known)} of {how_many(len(completed), 'completed run')} {say(known[0])}")
    return found


def looks(
    group: Group, members: Members, plan: Plan | None, controls: Collection[Sequence[str]], margin: float, confidence: float,
    margin_for: str,
) -> list[str]:  # fmt: skip
    """What the looks of a planned study mean for its decisions, and where the study departs from the plan.

    controls: model, data and setting of each control that the plan names.
    """
    if plan is None or group.control is None:
        return []
    sizes, levels = (", ".join(found) for found in (map(str, plan.sizes), (f"{100 * level:.2g}" for level in plan.levels(1 - confidence))))
    found = [
        f"looks were planned at {sizes} seeds; their tests have levels of {levels} %, so that together they err with "
        f"at most {100 * (1 - confidence):.3g} %, before the correction for several settings; intervals are wider accordingly"
    ]
    taken = members.control[0]
    own, named = judged_by(taken.metrics, taken.metric, taken.metric_goal), (taken.model, taken.data, taken.setting) in controls
    given = {
        "control": (taken.setting, taken.setting if named else plan.control),
        "metric": (group.metric.name, own.name),
        "margin": (f"{margin:g}", f"{plan.margin:g}"),
        "margin_is": tuple("relative" if metric.relative else "absolute" for metric in (group.metric, own)),
        "margin_for": (margin_for, TEST_SET),
        "confidence": (f"{confidence:g}", f"{plan.confidence:g}"),
    }
    found += [
        f"{key}={mine} is not the plan's, {theirs}, by which the study stopped: a decision errs more often by one chosen afterwards"
        for key, (mine, theirs) in given.items()
        if mine != theirs
    ]
    runs = [run for row in group.rows for run in row.runs]
    if outside := sum(run.looks is None for run in runs):
        found.append(f"{outside} of {len(runs)} runs were made outside of the plan, as by seed=, and maybe after results were seen")
    return found + _of_settings(group, lambda row: _undecided_seeds(row, plan))


def _undecided_seeds(row: Row, plan: Plan) -> list[str]:
    more = sum(run.seed >= row.decision.look.seeds for run in row.runs) if row.decision else 0
    by_hand = any(run.seed >= plan.max_seeds for run in row.runs)
    reason = f"the plan ends at {plan.max_seeds}, and seeds added after it do not count" if by_hand else "they wait for the next look"
    return [f"{more} of {len(row.runs)} seeds have no part in the decision: {reason}"] if more else []
