"""The fastest setting of a group at no loss: to train, to serve, and in time to train. verdict.py puts it
into words.

Simple beats equal: of the settings that are not shown to be slower than the fastest, the simplest is taken.
That is the control; else a dense one before a sparse one; else the one whose format is nearest to the
control's.
"""

from dataclasses import dataclass
from enum import Enum, auto

from mpx.compare.comparison import Estimate, Group, Row, Speedup, Verdict
from mpx.compare.groups import rank
from mpx.compare.served import Serving, plainest, was_served
from mpx.compare.speed import ratio

# Without an interval a smaller speed-up counts as noise: runs on an idle GPU differ by 1 to 2 %.
CLEARLY_FASTER = 1.05


class Outcome(Enum):
    NOTHING = auto()  # no comparison is possible
    NONE = auto()  # no setting is shown to be at no loss
    UNTIMED = auto()  # some settings are at no loss, but their speed is not compared
    CONTROL = auto()  # no setting at no loss is shown to be faster than the control
    SETTING = auto()  # the simplest of those at no loss that are not shown to be slower than the fastest


@dataclass(frozen=True)
class Answer:
    outcome: Outcome
    reason: str = ""  # why nothing can be compared
    best: Row | None = None  # the setting that is taken; if that is the control, the fastest of the others
    ahead: Speedup | None = None  # of the best over the control
    rivals: tuple[Row, ...] = ()  # not shown to be slower than the fastest either, but less simple
    undecided: tuple[Row, ...] = ()  # faster than all of these, but not shown to be at no loss
    untimed: tuple[Row, ...] = ()  # at no loss, but their speed is not compared; the simplest first


def fastest_to_train(group: Group, confidence: float) -> Answer:
    if reason := _nothing_to_compare(group):
        return Answer(Outcome.NOTHING, reason)
    control, *others = group.rows
    good = [row for row in others if row.no_loss]
    timed = [row for row in good if row.speedup]
    untimed = tuple(
        sorted((row for row in good if not row.speedup), key=lambda row: _complexity(row, control))
    )
    if not timed:
        return Answer(Outcome.UNTIMED if good else Outcome.NONE, untimed=untimed)
    fastest = max((control, *timed), key=_rate)
    near = [
        row for row in (control, *timed) if not shown_faster(fastest.throughput, row.throughput, confidence)
    ]
    simplest = min(near, key=lambda row: _complexity(row, control))
    undecided = tuple(
        row
        for row in others
        if row.decision and row.decision.verdict == Verdict.UNDECIDED and row.speedup
        if _rate(row) > _rate(fastest)
    )
    if simplest is control:
        best = max(timed, key=_rate)
        return Answer(Outcome.CONTROL, "", best, best.speedup, (), undecided, untimed)
    rivals = tuple(row for row in near if row is not simplest)
    return Answer(Outcome.SETTING, "", simplest, simplest.speedup, rivals, undecided, untimed)


@dataclass(frozen=True)
class ServingAnswer:
    outcome: Outcome
    best: Row | None = None
    plain: Serving | None = None  # the control in its plainest way, with which the best is compared
    ahead: Speedup | None = None  # of the best over `plain`; None where the control's speed does not count


def fastest_to_serve(group: Group, confidence: float) -> ServingAnswer | None:
    """The setting, of the control and those at no loss, whose way to serve it at `group.served_at` is
    fastest; against the control in its plainest way. None if nothing was served.
    """
    if not was_served(group.rows):
        return None
    if group.control is None or group.served_at is None:
        return ServingAnswer(Outcome.NOTHING)
    control = group.rows[0]
    served = [row for row in group.rows if row.serve and (row is control or row.no_loss)]
    if not served:
        return ServingAnswer(Outcome.NONE)
    fastest = max(served, key=_served_rate)
    near = [row for row in served if not shown_faster(fastest.serve, row.serve, confidence)]
    best, plain = min(near, key=lambda row: _complexity(row, control)), plainest(control, group)
    if plain is None:
        return ServingAnswer(Outcome.SETTING, best)
    ahead = ratio(best.serve, plain.counted, confidence)
    faster = shown_faster(best.serve, plain.counted, confidence)
    return ServingAnswer(Outcome.SETTING if faster else Outcome.CONTROL, best, plain, ahead)


def soonest(group: Group, confidence: float) -> tuple[Row, Row] | None:
    """(the setting to take for the shortest time to train, the one that is fastest to train), of the control
    and those at no loss. None if the times do not count.

    Throughput leaves out the time beside the steps: start, compilation, warm-up, validation. In short runs
    the fastest setting may therefore take longer; in long runs it wins. It is taken unless it is shown to
    take longer than another.
    """
    answer, control = fastest_to_train(group, confidence), group.rows[0]
    winner = control if answer.outcome == Outcome.CONTROL else answer.best
    rows = [control, *(row for row in group.rows[1:] if row.no_loss and row.sooner)]
    if winner is None or winner not in rows or control.timed is None:
        return None
    first = min(rows, key=_seconds)
    return (first if shown_faster(winner.timed, first.timed, confidence) else winner), winner


def shown_faster(a: Estimate | None, b: Estimate | None, confidence: float) -> bool:
    """Whether a ÷ b is significantly above 1; without an interval, by CLEARLY_FASTER."""
    ahead = ratio(a, b, confidence)
    if ahead is None:
        return False
    return ahead.ratio >= CLEARLY_FASTER if ahead.low is None else ahead.low > 1


def _complexity(row: Row, control: Row) -> tuple:
    run, plain = row.runs[0], control.runs[0]
    away = abs(rank(run.precision) - rank(plain.precision))
    return row is not control, run.sparsity != "dense", away, len(run.changes)


def _rate(row: Row) -> float:
    return row.throughput.mean if row.throughput else 0.0


def _served_rate(row: Row) -> float:
    return row.serve.mean if row.serve else 0.0


def _seconds(row: Row) -> float:
    return row.timed.mean if row.timed else float("inf")


def _nothing_to_compare(group: Group) -> str | None:
    if group.control is None:
        return "no run of the control to compare with"
    control = group.rows[0]
    if not control.metric:
        return f"no run of {control.setting}, the control, completed with {group.metric.name}"
    return f"{control.setting} is the only setting" if len(group.rows) == 1 else None
