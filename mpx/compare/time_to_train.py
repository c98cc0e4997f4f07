"""Find the setting to take for the shortest time to train.

Throughput leaves out the time beside the steps: start, compilation, warm-up, validation. In short runs the setting of the highest
throughput may therefore take longer; in long runs it wins.
"""

from collections.abc import Iterable

from mpx.compare.comparison import Estimate, Group, Row, Verdict
from mpx.compare.run import Run
from mpx.compare.speed import ratio
from mpx.compare.statistics import estimate
from mpx.compare.verdict import Outcome, fastest_to_train, shown_larger, surely
from mpx.compare.words import digits, spread

SHORTEST = 1e-3  # seconds; a shorter training was not timed


def timed(runs: Iterable[Run]) -> Estimate | None:
    """Time to train, over runs whose speed counts.

    Runs whose speed was measured afterwards are left out, since they shared the device while they trained. So are resumed runs, whose parts
    may have run on different devices.
    """
    alone = (run for run in runs if not run.measured_alone and not run.resumed)
    return estimate([run.time_to_train_s for run in alone if (run.time_to_train_s or 0) >= SHORTEST])


def time_verdict(group: Group, confidence: float) -> str:
    """A sentence on the setting with the shortest time to train, of the control and the settings at no loss.

    Empty if the times do not count. It follows the sentence on throughput and refers to its winner.
    """
    first = soonest(group, confidence)
    if first is None:
        return ""
    control, winner = group.rows[0], _winner(group, confidence)
    if first is winner:
        shortest = winner.timed.mean <= min(row.timed.mean for row in _timed_rows(group))
        what = f"It also has {_shortest(winner, group, confidence)}" if shortest else "No other is shown to take less time to train"
        return f"{what}: {_took(winner, control, confidence)}."
    took = _took(first, control, confidence)
    return (
        f"But {first.setting} has {_shortest(first, group, confidence)}: {took}. {winner.setting}, which takes {_seconds(winner)}, is for "
        "longer runs, where its higher throughput pays."
    )


def _shortest(first: Row, group: Group, confidence: float) -> str:
    """Words for the row with the shortest mean: whether every other is shown to take longer, and all at no loss are compared."""
    rows = _timed_rows(group)
    shown = all(shown_larger(ratio(row.timed, first.timed, confidence)) for row in rows if row is not first)
    words = "the shortest time to train" if shown else "the shortest mean time to train"
    return words if len(rows) == len(_no_worse_rows(group)) else f"{words} of those compared"


def soonest(group: Group, confidence: float) -> Row | None:
    """Of the control and the settings at no loss, the one to take for the shortest time to train.

    It is the one with the highest throughput, unless that is shown to take longer than another. None if the times do not count.
    """
    winner, rows = _winner(group, confidence), _timed_rows(group)
    if winner is None or group.rows[0].timed is None or winner not in rows:
        return None
    first = min(rows, key=lambda row: row.timed.mean)
    return first if shown_larger(ratio(winner.timed, first.timed, confidence)) else winner


def _winner(group: Group, confidence: float) -> Row | None:
    """The row with the highest throughput, of the control and the settings at no loss."""
    found = fastest_to_train(group, confidence)
    return {Outcome.CONTROL: group.rows[0], Outcome.SETTING: found.best}.get(found.outcome)


def _timed_rows(group: Group) -> list[Row]:
    return [row for row in _no_worse_rows(group) if row is group.rows[0] or row.sooner]


def _no_worse_rows(group: Group) -> list[Row]:
    """The control and the settings at no loss."""
    control, *others = group.rows
    return [control, *(row for row in others if row.decision and row.decision.verdict == Verdict.NO_LOSS)]


def _took(row: Row, control: Row, confidence: float) -> str:
    if row is control:
        return _seconds(row)
    return f"{_seconds(row)}, while {control.setting} takes {row.sooner.ratio:.2f} times as long{surely(row.sooner, confidence)}"


def _seconds(row: Row) -> str:
    return spread(row.timed, digits(row.timed.mean, 1), " s")
