"""The verdict on a group: the fastest setting at no loss, its speed-up and confidence, or why there is none.

`fastest_to_train` and `fastest_to_serve` return it as data; `train_verdict` and `serve_verdict` put it into a sentence.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from mpx.compare.comparison import Group, Method, Row, Speedup, Verdict
from mpx.compare.decisions import seeds_of_both, seen_at
from mpx.compare.metric import Metric
from mpx.compare.served import Spot, spots, was_served
from mpx.compare.speed import ratio
from mpx.compare.statistics import estimate
from mpx.compare.words import UNKNOWN, decided, difference, number, population, rate_spec, spread

MAX_NAMED = 3  # settings that a sentence lists by name
CLEARLY_FASTER = 1.05  # speed-ups below this may be noise; repeated runs on an idle GPU differ by 1 to 2 %


class Outcome(Enum):
    NOTHING = auto()  # no comparison is possible
    NONE = auto()  # no setting is shown to be at no loss
    UNTIMED = auto()  # some settings are at no loss, but their speed is not compared
    CONTROL = auto()  # the control is faster than every setting at no loss
    SETTING = auto()  # a setting at no loss is fastest


@dataclass(frozen=True)
class Answer:
    outcome: Outcome
    reason: str = ""  # why nothing can be compared
    best: Row | None = None  # the fastest setting; to train, if that is the CONTROL, the fastest other one
    rivals: tuple[Row, ...] = ()  # also at no loss, and perhaps as fast
    undecided: tuple[Row, ...] = ()  # faster than the best and the control, but with too few seeds for a decision
    untimed: tuple[Row, ...] = ()  # also at no loss, but their speed is not compared


def fastest_to_train(group: Group, confidence: float) -> Answer:
    if reason := _nothing_to_compare(group):
        return Answer(Outcome.NOTHING, reason)
    others = group.rows[1:]
    good = [row for row in others if _is(row, Verdict.NO_LOSS)]
    if not good:
        return Answer(Outcome.NONE)
    timed, untimed = [row for row in good if row.speedup], tuple(row for row in good if not row.speedup)
    if not timed:
        return Answer(Outcome.UNTIMED, untimed=untimed)
    best = max(timed, key=lambda row: row.speedup.ratio)
    faster = [row for row in others if row.speedup and row.speedup.ratio > max(1.0, best.speedup.ratio)]
    undecided = tuple(row for row in faster if _is(row, Verdict.UNDECIDED))
    if best.speedup.ratio <= 1:
        return Answer(Outcome.CONTROL, best=best, undecided=undecided, untimed=untimed)
    return Answer(Outcome.SETTING, best=best, rivals=_rivals(best, timed, confidence), undecided=undecided, untimed=untimed)


def _rivals(best: Row, timed: Sequence[Row], confidence: float) -> tuple[Row, ...]:
    """Settings than which the best is not shown to be faster."""
    pairs = [(row, ratio(best.throughput, row.throughput, confidence)) for row in timed if row is not best]
    return tuple(row for row, ahead in pairs if not shown_larger(ahead))


def shown_larger(found: Speedup) -> bool:
    """Whether the ratio is significantly above 1; without an interval, by CLEARLY_FASTER."""
    return found.ratio >= CLEARLY_FASTER if found.low is None else found.low > 1


def fastest_to_serve(group: Group) -> Answer | None:
    """The fastest served setting among the control and the settings at no loss, all at `group.served_at`; None if nothing was served."""
    if not was_served(group.rows):
        return None
    if reason := _no_control(group):
        return Answer(Outcome.NOTHING, reason)
    if group.served_at is None:
        known = "known to have had its device to itself, as no CPU is"
        return Answer(Outcome.NOTHING, f"no way to serve is both as accurate as the training was and {known}")
    control = group.rows[0]
    good = [row for row in group.rows if row is control or _is(row, Verdict.NO_LOSS)]
    there, elsewhere = [row for row in good if row.serve], tuple(row for row in good if not row.serve and was_served([row]))
    if there == [control] and elsewhere:
        return Answer(
            Outcome.NOTHING, f"only {control.setting} counts {_spot(group.served_at)}; not compared: {_elsewhere(elsewhere, group)}"
        )
    if not there:
        return Answer(Outcome.NONE)
    best = max(there, key=lambda row: row.serve.mean)
    return Answer(Outcome.CONTROL if best is control else Outcome.SETTING, best=best, untimed=elsewhere)


def _is(row: Row, verdict: Verdict) -> bool:
    return row.decision is not None and row.decision.verdict == verdict


def _nothing_to_compare(group: Group) -> str | None:
    alone = f"there is nothing to compare {group.control} with" if len(group.rows) == 1 else None
    return _no_control(group) or alone


def _no_control(group: Group) -> str | None:
    if group.control is None:
        return "no run of the control to compare with"
    control = group.rows[0]
    return None if control.metric else f"no run of {control.setting}, the control, completed with {group.metric.name}"


def train_verdict(group: Group, margin: float, confidence: float) -> str:
    metric, found = group.metric, fastest_to_train(group, confidence)
    if found.outcome == Outcome.NOTHING:
        return f"No verdict: {found.reason}."
    control, *others = group.rows
    if found.outcome == Outcome.NONE:
        return f"No setting is shown to train at {_no_loss(metric)}. {_states(others)}."
    if found.outcome == Outcome.UNTIMED:
        reasons = "; ".join(dict.fromkeys(str(row.speed_note) for row in found.untimed))
        return f"At {_no_loss(metric)}: {_listed(found.untimed, others)}. Which setting is fastest to train is not known ({reasons})."
    unknown = f"; faster, but not enough seeds to tell: {_few(found.undecided)}" if found.undecided else ""
    unknown += f"; also at {_no_loss(metric)}, their speed not compared: {_few(found.untimed)}" if found.untimed else ""
    ahead = times(found.best.speedup, control.setting, confidence)
    if found.outcome == Outcome.CONTROL:
        nearest = f"of the others, {found.best.setting} comes nearest, {ahead}"
        return f"Fastest to train at {_no_loss(metric)}: {control.setting} itself; {nearest}{unknown}."
    rivals = f"; perhaps as fast, also at no loss: {_few(found.rivals)}" if found.rivals else ""
    ahead += _by_chance(found.best.speedup)
    shown = evidence(found.best, control, metric, margin)
    return f"Fastest to train at {_no_loss(metric)}: {found.best.setting}, {ahead}; {shown}{rivals}{unknown}."


def serve_verdict(group: Group, confidence: float) -> str:
    """Empty if nothing was served."""
    found, metric = fastest_to_serve(group), group.metric
    if found is None:
        return ""
    if found.outcome == Outcome.NOTHING:
        return f"Fastest to serve: no verdict, {found.reason}."
    if found.outcome == Outcome.NONE:
        served = [row for row in group.rows if row.serve]
        return f"Fastest to serve: none of the served settings ({_listed(served)}) is shown to be at {_no_loss(metric)}."
    control, best = group.rows[0], found.best
    ahead = ratio(best.serve, control.serve, confidence)
    if found.outcome == Outcome.CONTROL:
        against = "the control itself"
    elif ahead is None:
        against = f"{control.setting} was not served so"
    else:
        against = times(ahead, _way(control), confidence) + _by_chance(ahead)
    rate = f"{number(best.serve.mean, rate_spec(best.serve.mean))} samples/s"
    rest = f"; not compared: {_elsewhere(found.untimed, group)}" if found.untimed else ""
    completed = sum(run.status == "completed" for run in best.runs)
    rate += f" over {best.serve.n} of {completed} seeds" if best.serve.n < completed else ""
    return f"Fastest to serve at {_no_loss(metric)}: {_way(best)}, {rate} {_spot(group.served_at)}; {against}{rest}."


def _way(row: Row) -> str:
    return f"{row.setting} as {row.served_by.words} by {row.served_by.backend}"


def _spot(spot: Spot, beside: Spot | None = None) -> str:
    """beside: another spot; where device and batch size are its own, the hosts differ."""
    device, batch, host = spot
    if beside is not None and spot[:2] == beside[:2]:
        return f"measured with {host or 'unknown versions'}, not {beside[2] or 'unknown versions'}"
    return f"at batch size {batch:,} on {device}"


def _elsewhere(rows: Sequence[Row], group: Group) -> str:
    """Why these settings, which were served, are not compared."""
    places = {row.setting: " and ".join(_spot(spot, group.served_at) for spot in spots(row, group.metric.name)) for row in rows}
    return ", ".join(f"{setting} ({found or 'less accurate, or not known to be alone on its device'})" for setting, found in places.items())


def _no_loss(metric: Metric) -> str:
    return f"no loss of {metric.name.partition('/')[2]}" if metric.sign > 0 else f"no worse {metric.name.partition('/')[2]}"


def _states(rows: Sequence[Row]) -> str:
    """The decision on each setting; for many settings, their counts and the setting that needs the fewest further seeds."""
    if len(rows) <= MAX_NAMED:
        return "; ".join(f"{row.setting}: {decided(row.decision) if row.decision else 'no result'}" for row in rows)
    count = Counter(row.decision.verdict if row.decision else "no result" for row in rows)
    soon = min((row for row in rows if row.decision and row.decision.more_seeds), key=lambda row: row.decision.more_seeds, default=None)
    nearest = f"; {soon.setting} is nearest, about {soon.decision.more_seeds} more would tell" if soon else ""
    return f"{len(rows)} settings: " + ", ".join(f"{number} {what}" for what, number in count.most_common()) + nearest


def times(speedup: Speedup, control: str, confidence: float) -> str:
    return f"{speedup.ratio:.2f} times as fast as {control}{surely(speedup, confidence)}"


def surely(speedup: Speedup, confidence: float) -> str:
    """The interval of the ratio, in parentheses; empty if there is none."""
    return "" if speedup.low is None else f" ({speedup.low:.2f} to {speedup.high:.2f}, {confidence * 100:g} % confidence)"


def _by_chance(speedup: Speedup) -> str:
    if speedup.low is None:
        return ", from too few measurements to say how surely"
    return ", which may be chance" if speedup.low <= 1 else ""


def evidence(row: Row, control: Row, metric: Metric, margin: float) -> str:
    """Both means, their difference with its interval, and the margin. If not all seeds are paired, it says which ones are. With a look, all
    of them are of the seeds that it saw."""
    look = row.decision.look
    mine, theirs = (estimate(list(seen_at(look, one, metric).values())) for one in (row, control))
    seeds = f"{mine.n}" if mine.n == theirs.n else f"{mine.n} and {theirs.n}"
    shared = seeds_of_both(row, control, metric)
    paired = f" at {look.words}" if look else f" over the {shared} that both have" if shared else ""
    allowed = f"{margin * 100:g} % of {control.setting}'s" if metric.relative else f"{margin:g}"
    spec = metric.spec
    wide = population(row.decision, spec)
    there = "" if wide == UNKNOWN else f", for the population {wide}"
    bounded = " for the population" if row.decision.method == Method.CROSSED else ""
    return (
        f"{metric.words} {spread(mine, spec)} against {spread(theirs, spec)} over {seeds} seeds, "
        f"difference {difference(row.decision, spec)}{paired}{there}, margin {allowed}{bounded}"
    )


def _few(rows: Sequence[Row]) -> str:
    return ", ".join(row.setting for row in rows) if len(rows) <= MAX_NAMED else f"{len(rows)} others"


def _listed(rows: Sequence[Row], of: Sequence[Row] = ()) -> str:
    return f"all {len(rows)} others" if MAX_NAMED < len(rows) == len(of) else ", ".join(row.setting for row in rows)
