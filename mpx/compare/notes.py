"""Notes on a group: the caveats that a reader must know to interpret its figures, one sentence each."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from mpx.compare import speed
from mpx.compare.comparison import TEST_SET, Group, Question, Row
from mpx.compare.fastest import fastest_to_train
from mpx.compare.groups import Members
from mpx.compare.looks import Plan
from mpx.compare.run import AUTO, CODE_HASHES, Run
from mpx.runs.result import judged_by


def notes(group: Group, members: Members, question: Question) -> list[str]:
    """members: the source of the group."""
    said = [members.note] if members.note else []
    said += _beside_the_verdict(group, question.confidence)
    said += _of_settings(group, _compiled_alike)
    said += _of_settings(group, lambda row: _some_speeds(row, group))
    said += _of_settings(group, _some_times)
    said += _of_settings(group, _speed_not_compared)
    said += _other_versions(group.runs)
    if question.plan is not None and group.control is not None:
        said += _planned(group, question, question.plan)
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


def _beside_the_verdict(group: Group, confidence: float) -> list[str]:
    answer = fastest_to_train(group, confidence)
    lines = []
    if answer.rivals:
        lines.append(f"{_who(answer.rivals, group)}: not shown to be slower; the verdict names the simplest")
    if answer.undecided:
        lines.append(f"{_who(answer.undecided, group)}: faster, but undecided")
    return lines


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


def _speed_not_compared(row: Row) -> str | None:
    marked = "; samples/s marked (shared) and times are as measured" if row.shared else ""
    return f"speed not compared, {row.speed_note}{marked}" if row.speed_note else None


def _other_versions(runs: Sequence[Run]) -> list[str]:
    """What differs between runs and no setting says: PyTorch and the user's own code."""
    seen: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        if "torch" in run.environment:
            seen["PyTorch"].add(run.environment["torch"])
        for name, digest in run.environment.get(CODE_HASHES, {}).items():
            seen[f"the file of {name}"].add(digest)
    differing = [what for what, values in seen.items() if len(values) > 1]
    if not differing:
        return []
    return [
        f"runs differ in more than their settings: {', '.join(differing)}; a difference may come from that"
    ]


def _planned(group: Group, question: Question, plan: Plan) -> list[str]:
    """What the looks of a planned study mean for its decisions, and where the study departs from the plan."""
    sizes = ", ".join(map(str, plan.sizes))
    levels = ", ".join(f"{100 * level:.2g}" for level in plan.levels(question.level))
    lines = [
        f"looks were planned at {sizes} seeds; their tests have levels of {levels} %, so that together "
        f"they err with at most {100 * question.level:.3g} %, before the correction for several settings; "
        "intervals are wider accordingly"
    ]
    taken, metric = group.rows[0].runs[0], group.metric
    usual = judged_by(taken.metrics, taken.metric, taken.metric_goal)
    given = {
        "control": (question.control, plan.control if question.control != AUTO else AUTO),
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
        f"{key}={asked} is not the plan's, {planned}: choosing it afterwards weakens the guarantee"
        for key, (asked, planned) in given.items()
        if asked != planned
    ]
    if outside := sum(run.looks is None for run in group.runs):
        lines.append(f"{outside} of {len(group.runs)} runs were not planned beforehand, as those with seed=")
    return lines
