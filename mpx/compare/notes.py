"""Notes on a group: the caveats that a reader must know to interpret its figures. There are twelve kinds, one
sentence each.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from mpx.compare import speed
from mpx.compare.comparison import POPULATION, TEST_SET, Group, Method, Question, Row
from mpx.compare.decisions import values
from mpx.compare.groups import Members
from mpx.compare.looks import Plan
from mpx.compare.run import CODE_HASHES, SAMPLES, Run, judged_by

WILD = 5  # standard deviation of the control's seeds, in margins, above which a comparison says little


def notes(group: Group, members: Members, question: Question, planned_control: str | None) -> list[str]:
    """members: the source of the group. planned_control: the setting that the plan of looks names as this
    group's control.
    """
    said = [members.note] if members.note else []
    said += _scatter(group, question.margin) if group.control else []
    said += _of_settings(group, lambda row: _no_population(row, question.margin_for, group))
    said += _of_settings(group, _compiled_alike)
    said += _of_settings(group, lambda row: _some_speeds(row, group))
    said += _of_settings(group, _some_times)
    said += _speed_not_compared(group)
    said += _other_versions(group.runs)
    if question.plan is not None and group.control is not None:
        said += _planned(group, members, question, question.plan, planned_control)
    return said


def _of_settings(group: Group, text: Callable[[Row], str | None]) -> list[str]:
    """The note on each row, one line for all rows with the same."""
    rows_of: dict[str, list[Row]] = {}
    for row in group.rows:
        if (note := text(row)) is not None:
            rows_of.setdefault(note, []).append(row)
    return [f"{_who(rows, group)}: {note}" for note, rows in rows_of.items()]


def _who(rows: Sequence[Row], group: Group) -> str:
    return "all settings" if 1 < len(rows) == len(group.rows) else ", ".join(row.setting for row in rows)


def _scatter(group: Group, margin: float) -> list[str]:
    control, metric = group.rows[0].metric, group.metric
    allowed = metric.allowed(margin, control.mean) if control else 0.0
    if control is None or control.std is None or control.std <= WILD * allowed:
        return []
    seeds = values(group.rows[0], metric).values()
    ends = f"{min(seeds):{metric.spec}} to {max(seeds):{metric.spec}}"
    return [
        f"the control's seeds scatter so much ({ends}, while the margin is {allowed:.3g}) that the "
        "comparison says little"
    ]


def _no_population(row: Row, margin_for: str, group: Group) -> str | None:
    """Why there is no interval for the population, where the margin is for it or other settings have one."""
    decisions = [one.decision for one in group.rows if one.decision]
    wanted = margin_for == POPULATION or any(
        one.population and one.population.low is not None for one in decisions
    )
    decision = row.decision
    if not wanted or decision is None or decision.population is None or decision.method == Method.TIED:
        return None
    return (
        f"no interval for the population, since {decision.population.reason}"
        if decision.population.reason
        else None
    )


def _compiled_alike(row: Row) -> str | None:
    ways = Counter(run.compiled or "not compiled" for run in row.completed)
    if len(ways) < 2:
        return None
    each = ", ".join(f"{number} {way}" for way, number in ways.items())
    return (
        f"not all seeds compiled alike ({each}), so their speed and rounding differ; set "
        "trainer.compile to have all alike"
    )


def _some_speeds(row: Row, group: Group) -> str | None:
    place = speed.place_for(row.completed, speed.place_in(group))
    if row.throughput is None or place is None:
        return None
    counted, completed = speed.at(place, row.completed), row.completed
    if len(counted) == len(completed):
        return None
    others = "; ".join(f"{number}: {why}" for why, number in speed.left_out(place, completed).items())
    return f"speed of {len(counted)} of {len(completed)} completed runs, without {others}"


def _some_times(row: Row) -> str | None:
    again = sum(run.resumed for run in row.completed)
    if row.throughput is None or not again:
        return None
    return (
        f"time to train compared without {again} of {len(row.completed)} runs, which resumed, maybe elsewhere"
    )


def _speed_not_compared(group: Group) -> list[str]:
    lines = []
    for reason in dict.fromkeys(row.speed_note for row in group.rows if row.speed_note):
        rows = [row for row in group.rows if row.speed_note == reason]
        marked = (
            "; samples/s marked (shared) and times are as measured" if any(row.shared for row in rows) else ""
        )
        lines.append(f"{_who(rows, group)}: speed not compared, {reason}{marked}")
    return lines


def _other_versions(runs: Sequence[Run]) -> list[str]:
    """What differs between runs and no setting says: PyTorch, the user's own code, the samples of the
    data.
    """
    differing = []
    if (
        len(torch := sorted({str(run.environment["torch"]) for run in runs if "torch" in run.environment}))
        > 1
    ):
        differing.append(f"PyTorch {' and '.join(torch)}")
    for part, what in ((CODE_HASHES, "the file of {}"), (SAMPLES, "the samples of {}")):
        hashes: dict[str, set[tuple]] = {}
        for run in runs:
            of_data = (
                tuple(item for item in run.changes.items() if item[0].startswith("data."))
                if part == SAMPLES
                else ()
            )
            for name, digest in run.environment.get(part, {}).items():
                hashes.setdefault(name, set()).add((of_data, digest))
        differing += [
            what.format(name)
            for name, seen in hashes.items()
            if len(seen) > len({of_data for of_data, _ in seen})
        ]
    return (
        [f"runs differ in more than their settings: {', '.join(differing)}; a difference may come from that"]
        if differing
        else []
    )


def _planned(
    group: Group, members: Members, question: Question, plan: Plan, planned_control: str | None
) -> list[str]:
    """What the looks of a planned study mean for its decisions, and where the study departs from the plan."""
    sizes, levels = (
        ", ".join(map(str, plan.sizes)),
        ", ".join(f"{100 * level:.2g}" for level in plan.levels(question.level)),
    )
    lines = [
        f"looks were planned at {sizes} seeds; their tests have levels of {levels} %, so that together "
        "they err with "
        f"at most {100 * question.level:.3g} %, before the correction for several settings; intervals are "
        "wider accordingly"
    ]
    taken, metric = members.control[0], group.metric
    usual = judged_by(taken.metrics, taken.metric, taken.metric_goal)
    given = {
        "control": (taken.setting, planned_control or plan.control),
        "metric": (metric.name, usual.name),
        "margin": (f"{question.margin:g}", f"{plan.margin:g}"),
        "margin_is": (
            "relative" if metric.relative else "absolute",
            "relative" if usual.relative else "absolute",
        ),
        "margin_for": (question.margin_for, TEST_SET),
        "confidence": (f"{question.confidence:g}", f"{plan.confidence:g}"),
    }
    lines += [
        f"{key}={asked} is not the plan's, {planned}, by which the study stopped: a decision errs more "
        "often by one chosen afterwards"
        for key, (asked, planned) in given.items()
        if asked != planned
    ]
    if outside := sum(run.looks is None for run in group.runs):
        total = len(group.runs)
        lines.append(
            f"{outside} of {total} runs were made outside of the plan, as by seed=, and maybe "
            "after results were seen"
        )
    return lines + _of_settings(group, lambda row: _undecided_seeds(row, plan))


def _undecided_seeds(row: Row, plan: Plan) -> str | None:
    look = row.decision.look if row.decision else None
    more = sum(run.seed >= look.seeds for run in row.runs) if look else 0
    if not more:
        return None
    by_hand = any(run.seed >= plan.max_seeds for run in row.runs)
    after = f"the plan ends at {plan.max_seeds}, and seeds added after it do not count"
    reason = after if by_hand else "they wait for the next look"
    return f"{more} of {len(row.runs)} seeds have no part in the decision: {reason}"
