"""The verdicts on a group: who is fastest at no loss, to train, to serve, and in time to train; and all
sentences that say so.

First the choice, as data: `fastest_to_train`, `fastest_to_serve`, `soonest`. Then its words: `train_verdict`,
`serve_verdict`, `time_verdict`, each from whole sentences and the phrases below them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from mpx.compare.comparison import Estimate, Group, Method, Question, Row, Speedup, Verdict, estimate
from mpx.compare.decisions import values
from mpx.compare.run import Metric
from mpx.compare.served import Spot, spots, was_served
from mpx.compare.speed import ratio
from mpx.compare.words import UNKNOWN, decided, difference, digits, number, population, rate_spec, spread

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
    ahead: Speedup | None = None  # of the best over the control
    rivals: tuple[Row, ...] = ()  # also at no loss, and perhaps as fast
    # faster than the best and the control, but with too few seeds for a decision
    undecided: tuple[Row, ...] = ()
    untimed: tuple[Row, ...] = ()  # also at no loss, but their speed is not compared


def fastest_to_train(group: Group, confidence: float) -> Answer:
    if reason := _nothing_to_compare(group):
        return Answer(Outcome.NOTHING, reason)
    others = group.rows[1:]
    good = [row for row in others if row.no_loss]
    if not good:
        return Answer(Outcome.NONE)
    timed = [(row.speedup.ratio, row) for row in good if row.speedup]
    untimed = tuple(row for row in good if not row.speedup)
    if not timed:
        return Answer(Outcome.UNTIMED, untimed=untimed)
    most, best = max(timed, key=lambda one: one[0])
    undecided = tuple(
        row for row in others
        if row.speedup and row.speedup.ratio > max(1.0,
        most) and row.decision and row.decision.verdict == Verdict.UNDECIDED
    )  # fmt: skip
    if most <= 1:
        return Answer(Outcome.CONTROL, best=best, ahead=best.speedup, undecided=undecided, untimed=untimed)
    rivals = tuple(
        row
        for _, row in timed
        if row is not best and not _shown_faster(best.throughput, row.throughput, confidence)
    )
    return Answer(
        Outcome.SETTING, best=best, ahead=best.speedup, rivals=rivals, undecided=undecided, untimed=untimed
    )


def fastest_to_serve(group: Group, confidence: float) -> Answer | None:
    """The fastest served setting among the control and the settings at no loss, all at `group.served_at`;
    None if nothing was served.
    """
    if not was_served(group.rows):
        return None
    if reason := _no_control(group):
        return Answer(Outcome.NOTHING, reason)
    if group.served_at is None:
        known = "known to have had its device to itself, as no CPU is"
        return Answer(Outcome.NOTHING, f"no way to serve is both as accurate as the training was and {known}")
    control = group.rows[0]
    good = [row for row in group.rows if row is control or row.no_loss]
    compared = [(row.serve.mean, row) for row in good if row.serve]
    elsewhere = tuple(row for row in good if not row.serve and was_served([row]))
    if [row for _, row in compared] == [control] and elsewhere:
        others = f"not compared: {_elsewhere(elsewhere, group)}"
        return Answer(Outcome.NOTHING, f"only {control.setting} counts {_spot(group.served_at)}; {others}")
    if not compared:
        return Answer(Outcome.NONE)
    best = max(compared, key=lambda one: one[0])[1]
    outcome = Outcome.CONTROL if best is control else Outcome.SETTING
    return Answer(outcome, best=best, ahead=ratio(best.serve, control.serve, confidence), untimed=elsewhere)


def soonest(group: Group, confidence: float) -> tuple[Row, Row] | None:
    """(the setting to take for the shortest time to train, the one with the highest throughput), of the
    control and those at no loss.

    Throughput leaves out the time beside the steps: start, compilation, warm-up, validation. In short runs
    the setting of the highest throughput may therefore take longer; in long runs it wins. It is taken unless
    it is shown to take longer than another. None if the times do not count.
    """
    answer, rows = fastest_to_train(group, confidence), _timed_rows(group)
    winner = group.rows[0] if answer.outcome == Outcome.CONTROL else answer.best
    if winner is None or winner not in rows or group.rows[0].timed is None:
        return None
    first = min(rows, key=_seconds)
    return (first if _shown_faster(winner.timed, first.timed, confidence) else winner), winner


def _timed_rows(group: Group) -> list[Row]:
    """The control and the settings at no loss whose time to train counts."""
    control, *others = group.rows
    return [control, *(row for row in others if row.no_loss and row.sooner)]


def _seconds(row: Row) -> float:
    return row.timed.mean if row.timed else float("inf")


def _shown_faster(a: Estimate | None, b: Estimate | None, confidence: float) -> bool:
    """Whether a ÷ b is significantly above 1; without an interval, by CLEARLY_FASTER."""
    ahead = ratio(a, b, confidence)
    if ahead is None:
        return False
    return ahead.ratio >= CLEARLY_FASTER if ahead.low is None else ahead.low > 1


def _nothing_to_compare(group: Group) -> str | None:
    alone = f"there is nothing to compare {group.control} with" if len(group.rows) == 1 else None
    return _no_control(group) or alone


def _no_control(group: Group) -> str | None:
    if group.control is None:
        return "no run of the control to compare with"
    control = group.rows[0]
    return (
        None
        if control.metric
        else (f"no run of {control.setting}, the control, completed with {group.metric.name}")
    )


# The sentences.


def train_verdict(group: Group, question: Question) -> str:
    answer, no_loss = fastest_to_train(group, question.confidence), _no_loss(group.metric)
    if answer.outcome == Outcome.NOTHING:
        return f"No verdict: {answer.reason}."
    control, *others = group.rows
    if answer.outcome == Outcome.NONE:
        return f"No setting is shown to train at {no_loss}. {_states(others)}."
    if answer.outcome == Outcome.UNTIMED or answer.best is None:
        reasons = "; ".join(dict.fromkeys(str(row.speed_note) for row in answer.untimed))
        return (
            f"At {no_loss}: {_listed(answer.untimed, others)}. Which setting is fastest to train is not "
            f"known ({reasons})."
        )
    unknown = f"; faster, but not enough seeds to tell: {_few(answer.undecided)}" if answer.undecided else ""
    unknown += (
        f"; also at {no_loss}, their speed not compared: {_few(answer.untimed)}" if answer.untimed else ""
    )
    ahead = _times(answer.ahead, control.setting, question.confidence)
    if answer.outcome == Outcome.CONTROL:
        nearest = f"of the others, {answer.best.setting} comes nearest, {ahead}"
        return f"Fastest to train at {no_loss}: {control.setting} itself; {nearest}{unknown}."
    rivals = f"; perhaps as fast, also at no loss: {_few(answer.rivals)}" if answer.rivals else ""
    ahead += _by_chance(answer.ahead)
    shown = evidence(answer.best, control, group.metric, question)
    return f"Fastest to train at {no_loss}: {answer.best.setting}, {ahead}; {shown}{rivals}{unknown}."


def serve_verdict(group: Group, question: Question) -> str:
    """Empty if nothing was served."""
    answer, no_loss = fastest_to_serve(group, question.confidence), _no_loss(group.metric)
    if answer is None:
        return ""
    if answer.outcome == Outcome.NOTHING:
        return f"Fastest to serve: no verdict, {answer.reason}."
    control, best = group.rows[0], answer.best
    if best is None or best.serve is None or group.served_at is None:
        served = [row for row in group.rows if row.serve]
        return (
            f"Fastest to serve: none of the served settings ({_listed(served)}) is shown to be at {no_loss}."
        )
    if answer.outcome == Outcome.CONTROL:
        against = "the control itself"
    elif answer.ahead is None:
        against = f"{control.setting} was not served so"
    else:
        against = _times(answer.ahead, _way(control), question.confidence) + _by_chance(answer.ahead)
    rate = f"{number(best.serve.mean, rate_spec(best.serve.mean))} samples/s"
    rate += (
        f" over {best.serve.n} of {len(best.completed)} seeds" if best.serve.n < len(best.completed) else ""
    )
    rest = f"; not compared: {_elsewhere(answer.untimed, group)}" if answer.untimed else ""
    return f"Fastest to serve at {no_loss}: {_way(best)}, {rate} {_spot(group.served_at)}; {against}{rest}."


def time_verdict(group: Group, question: Question) -> str:
    """On the shortest time to train; empty if the times do not count. It follows the sentence on throughput
    and refers to its winner.
    """
    chosen = soonest(group, question.confidence)
    if chosen is None:
        return ""
    first, winner = chosen
    control, shortest = group.rows[0], _shortest(first, group, question.confidence)
    took = _took(first, control, question.confidence)
    if first is not winner:
        longer = (
            f"{winner.setting}, which takes {_duration(winner)}, is for longer runs, where its higher "
            "throughput pays"
        )
        return f"But {first.setting} has {shortest}: {took}. {longer}."
    if _seconds(winner) <= min(map(_seconds, _timed_rows(group))):
        return f"It also has {shortest}: {took}."
    return f"No other is shown to take less time to train: {took}."


def evidence(row: Row, control: Row, metric: Metric, question: Question) -> str:
    """Both means, their difference with its interval, and the margin. If not all seeds are paired, it says
    which ones are. With a look, all of them are of the seeds that it saw.
    """
    decision = row.decision
    if decision is None:
        return ""
    setting, base = (_seen(one, row, metric) for one in (row, control))
    of_row, of_control = estimate(list(setting.values())), estimate(list(base.values()))
    counts, shared = dict.fromkeys((len(setting), len(base))), len(setting.keys() & base.keys())
    if decision.look:
        paired = f" at {decision.look.words}"
    else:
        paired = f" over the {shared} that both have" if 2 <= shared < max(counts) else ""
    allowed = (
        f"{question.margin * 100:g} % of {control.setting}'s" if metric.relative else f"{question.margin:g}"
    )
    wide = population(decision, metric.spec)
    for_all = "" if wide == UNKNOWN else f", for the population {wide}"
    bounded = " for the population" if decision.method == Method.CROSSED else ""
    means = f"{spread(of_row, metric.spec)} against {spread(of_control, metric.spec)}"
    seeds = " and ".join(map(str, counts))
    change = f"difference {difference(decision, metric.spec)}{paired}{for_all}, margin {allowed}{bounded}"
    return f"{metric.words} {means} over {seeds} seeds, {change}"


def _seen(one: Row, row: Row, metric: Metric) -> dict[int, float]:
    """The values of a row or its control that the decision on the row rests on."""
    look = row.decision.look if row.decision else None
    return {seed: value for seed, value in values(one, metric).items() if look is None or seed < look.seeds}


# The phrases.


def _no_loss(metric: Metric) -> str:
    name = metric.name.partition("/")[2]
    return f"no loss of {name}" if metric.sign > 0 else f"no worse {name}"


def _times(speedup: Speedup | None, control: str, confidence: float) -> str:
    return f"{speedup.ratio:.2f} times as fast as {control}{_surely(speedup, confidence)}" if speedup else ""


def _surely(speedup: Speedup, confidence: float) -> str:
    """The interval of the ratio, in parentheses; empty if there is none."""
    return (
        ""
        if speedup.low is None
        else (f" ({speedup.low:.2f} to {speedup.high:.2f}, {confidence * 100:g} % confidence)")
    )


def _by_chance(speedup: Speedup | None) -> str:
    if speedup is None or speedup.low is None:
        return ", from too few measurements to say how surely"
    return ", which may be chance" if speedup.low <= 1 else ""


def _states(rows: Sequence[Row]) -> str:
    """The decision on each setting; for many settings, their counts and the setting that needs the fewest
    further seeds.
    """
    if len(rows) <= MAX_NAMED:
        return "; ".join(
            f"{row.setting}: {decided(row.decision) if row.decision else 'no result'}" for row in rows
        )
    count = Counter(row.decision.verdict if row.decision else "no result" for row in rows)
    more = [
        (row.decision.more_seeds, row.setting) for row in rows if row.decision and row.decision.more_seeds
    ]
    few, setting = min(more, key=lambda one: one[0], default=(0, ""))
    nearest = f"; {setting} is nearest, about {few} more would tell" if setting else ""
    return (
        f"{len(rows)} settings: "
        + ", ".join(f"{number} {what}" for what, number in count.most_common())
        + nearest
    )


def _way(row: Row) -> str:
    return (
        f"{row.setting} as {row.served_by.words} by {row.served_by.backend}" if row.served_by else row.setting
    )


def _spot(spot: Spot, beside: Spot | None = None) -> str:
    """beside: another spot; where device and batch size are the same, the hosts differ."""
    device, batch, host = spot
    if beside is not None and spot[:2] == beside[:2]:
        return f"measured with {host or 'unknown versions'}, not {beside[2] or 'unknown versions'}"
    return f"at batch size {batch:,} on {device}"


def _elsewhere(rows: Sequence[Row], group: Group) -> str:
    """Why these settings, which were served, are not compared."""
    each = []
    for row in rows:
        places = " and ".join(_spot(spot, group.served_at) for spot in spots(row, group.metric.name))
        each.append(f"{row.setting} ({places or 'less accurate, or not known to be alone on its device'})")
    return ", ".join(each)


def _shortest(first: Row, group: Group, confidence: float) -> str:
    """Words for the row with the shortest mean: whether every other is shown to take longer, and all at no
    loss are compared.
    """
    rows = _timed_rows(group)
    shown = all(_shown_faster(row.timed, first.timed, confidence) for row in rows if row is not first)
    words = "the shortest time to train" if shown else "the shortest mean time to train"
    return words if len(rows) == 1 + sum(row.no_loss for row in group.rows) else f"{words} of those compared"


def _took(row: Row, control: Row, confidence: float) -> str:
    if row is control or row.sooner is None:
        return _duration(row)
    return (
        f"{_duration(row)}, while {control.setting} takes {row.sooner.ratio:.2f} times as "
        f"long{_surely(row.sooner, confidence)}"
    )


def _duration(row: Row) -> str:
    return spread(row.timed, digits(row.timed.mean, 1), " s") if row.timed else UNKNOWN


def _few(rows: Sequence[Row]) -> str:
    return ", ".join(row.setting for row in rows) if len(rows) <= MAX_NAMED else f"{len(rows)} others"


def _listed(rows: Sequence[Row], of: Sequence[Row] = ()) -> str:
    return (
        f"all {len(rows)} others"
        if MAX_NAMED < len(rows) == len(of)
        else ", ".join(row.setting for row in rows)
    )
