"""The sentences of a group: the verdict on training and its evidence, the verdict on serving, and which other
setting finishes training earlier. fastest.py decides.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mpx.compare.comparison import Group, Method, Question, Row, Speedup, Verdict, estimate
from mpx.compare.decisions import values
from mpx.compare.fastest import Outcome, fastest_to_serve, fastest_to_train, soonest
from mpx.compare.run import Way
from mpx.compare.words import needed, speedup, spoken, spread
from mpx.runs.result import Metric
from mpx.system.printing import UNKNOWN, digits, how_many, number, rate, signed

MAX_NAMED = 3  # settings that a sentence lists by name
WILD = 5  # standard deviation of the control's seeds, in margins, above which a comparison says little
STATES = {
    Verdict.LOSS: "has a loss",
    Verdict.UNDECIDED: "is undecided",
    Verdict.NOT_COMPARABLE: "is not comparable",
}


def train_verdict(group: Group, question: Question) -> str:
    answer, no_loss = fastest_to_train(group, question.confidence), _no_loss(group.metric)
    if answer.outcome == Outcome.NOTHING:
        return f"No verdict: {answer.reason}."
    if answer.outcome == Outcome.NONE:
        return f"No setting is shown to train {no_loss}: {_states(group.rows[1:])}."
    if answer.best is None or answer.ahead is None:
        reasons = "; ".join(dict.fromkeys(str(row.speed_note) for row in answer.untimed))
        trained = f"{_listed(answer.untimed)} trained {no_loss} ({_seeds(answer.untimed[0], group)})"
        return f"{trained}, at a speed that is not compared: {reasons}."
    control, best, seeds = spoken(group.rows[0]), spoken(answer.best), _seeds(answer.best, group)
    if answer.outcome == Outcome.CONTROL:
        nearest = f"{best} trains {speedup(answer.ahead).replace('×', ' ×')} as fast ({seeds})"
        return f"No setting is shown to train faster than {control} {no_loss}: {nearest}."
    return f"{best} trains {_times(answer.ahead)} as fast as {control} {no_loss} ({seeds})."


def evidence(group: Group, question: Question) -> str:
    """Of the setting that the verdict names, if it names one: both means, their difference with its interval,
    and the margin. And whether the control's seeds scatter too much.
    """
    if group.control is None or len(group.rows) == 1:
        return ""
    scale = _Scale.of(group.metric, question.margin)
    row = _judged(group, question)
    difference = _difference(row, group, scale, question.margin) if row else ""
    return f"{difference} {_scatter(group, scale, question.margin)}".strip()


def _difference(row: Row, group: Group, scale: "_Scale", margin: float) -> str:
    """Empty if the setting has no result."""
    control, metric, decision = group.rows[0], group.metric, row.decision
    if decision is None or decision.difference is None:
        return ""
    means = (estimate(list(_seen(one, row, metric).values())) for one in (row, control))
    against = " against ".join(scale.value(one.mean) if one else UNKNOWN for one in means)
    crossed = decision.method == Method.CROSSED
    interval, bounds = decision.population if crossed else decision, ""
    if interval is not None and interval.low is not None and interval.high is not None:
        ends = f"{scale.change(interval.low)} to {scale.change(interval.high)}"
        bounds = f" ({ends}{' for the population' if crossed else ''})"
    allowed = f"{margin * scale.factor:g}"
    if metric.relative:
        allowed = f"{margin * 100:g} % of {spoken(control)}'s"
    change = f"{scale.change(decision.difference)}{scale.points}{bounds}"
    return f"{_title(metric)} {against}, difference {change}; margin {allowed}."


def _scatter(group: Group, scale: "_Scale", margin: float) -> str:
    control, metric = group.rows[0].metric, group.metric
    if control is None or (control.std or 0.0) <= WILD * metric.allowed(margin, control.mean):
        return ""
    seeds = values(group.rows[0], metric).values()
    ends = f"{scale.value(min(seeds))} to {scale.value(max(seeds))}"
    return f"This says little: the control's seeds scatter so much ({ends})."


def serve_verdict(group: Group, question: Question) -> str:
    """Empty if nothing was served."""
    answer, no_loss = fastest_to_serve(group, question.confidence), _no_loss(group.metric)
    if answer is None:
        return ""
    if answer.outcome == Outcome.NONE:
        return f"No setting that was served is shown to train {no_loss}."
    best, plain = answer.best, answer.plain
    if best is None or best.serve is None or best.served_by is None or group.served_at is None:
        return "No verdict on serving: no model is as accurate as after training and has a speed that counts."
    control = spoken(group.rows[0])
    device, batch, _ = group.served_at
    per_s, where = rate(best.serve.mean), f"samples/s at batch size {batch:,} on {device}"
    served = f"{spoken(best)} served as {_way(best.served_by)}"
    if plain is None or plain.counted is None or answer.ahead is None:
        return f"{served} is fastest {no_loss}: {per_s} {where}. {control} was not served there."
    reference, of_plain = f"{control} served as {_way(plain.way)}", rate(plain.counted.mean)
    if answer.outcome == Outcome.CONTROL:
        return f"Nothing is shown to be served faster {no_loss} than {reference}: {of_plain} {where}."
    ahead = f"{_times(answer.ahead)} as fast as {reference} {no_loss}"
    return f"{served} answers {ahead}: {per_s} against {of_plain} {where}."


def time_verdict(group: Group, question: Question) -> str:
    """Which other setting than the verdict's finishes training earlier; empty if none is shown to, or if the
    times do not count.
    """
    first, winner = soonest(group, question.confidence) or (None, None)
    if first is winner or first is None or winner is None:
        return ""
    return (
        f"{spoken(first)} finishes training earlier: {_duration(first)} against {_duration(winner)}. "
        f"{spoken(winner)} pays in longer runs."
    )


@dataclass(frozen=True)
class _Scale:
    """How a sentence shows a metric: an accuracy in percent, with the decimals that the margin needs."""

    factor: float
    spec: str
    unit: str = ""
    points: str = ""  # the unit of a difference

    @classmethod
    def of(cls, metric: Metric, margin: float) -> "_Scale":
        if not metric.name.endswith("/accuracy"):
            return cls(1.0, metric.spec)
        return cls(100.0, f".{max(1, 1 - math.floor(math.log10(200 * margin)))}f", " %", " points")

    def value(self, value: float) -> str:
        return number(value * self.factor, self.spec, self.unit)

    def change(self, value: float) -> str:
        text = signed(value * self.factor, self.spec)
        return text if text.strip("+0.") else text[1:]


# The phrases.


def _judged(group: Group, question: Question) -> Row | None:
    """The setting that the verdict names; None if it names none or several."""
    answer = fastest_to_train(group, question.confidence)
    if answer.best is not None or answer.outcome == Outcome.NOTHING:
        return answer.best
    named = answer.untimed or group.rows[1:]
    return named[0] if len(named) == 1 else None


def _seen(one: Row, row: Row, metric: Metric) -> dict[int, float]:
    """The values of a row or its control that the decision on the row rests on."""
    look = row.decision.look if row.decision else None
    return {seed: value for seed, value in values(one, metric).items() if look is None or seed < look.seeds}


def _seeds(row: Row, group: Group) -> str:
    """`10 seeds`, or `5 and 10 seeds` of the setting and its control."""
    of_row, of_control = (len(_seen(one, row, group.metric)) for one in (row, group.rows[0]))
    return how_many(of_row, "seed") if of_row == of_control else f"{of_row} and {of_control} seeds"


def _no_loss(metric: Metric) -> str:
    name = metric.name.partition("/")[2]
    return f"at no loss of {name}" if metric.sign > 0 else f"with no worse {name}"


def _title(metric: Metric) -> str:
    """`Accuracy`; of validation `Validation accuracy`."""
    stage, _, name = metric.name.partition("/")
    words = name if stage in ("test", "own") else f"{stage} {name}".replace("val ", "validation ", 1)
    return words[:1].upper() + words[1:]


def _times(ahead: Speedup) -> str:
    return f"{'about ' if ahead.low is None else ''}{ahead.ratio:.2f} ×"


def _states(rows: Sequence[Row]) -> str:
    """The decision on each setting, or their counts."""
    if len(rows) <= MAX_NAMED:
        return "; ".join(_state(row) for row in rows)
    count = Counter(row.decision.verdict if row.decision else "no result" for row in rows)
    return ", ".join(f"{number} {what}" for what, number in count.most_common())


def _state(row: Row) -> str:
    if row.decision is None:
        return f"{spoken(row)} has no result"
    return ", ".join(filter(None, (f"{spoken(row)} {STATES[row.decision.verdict]}", needed(row.decision))))


def _way(way: Way) -> str:
    return f"{'2:4 ' if way.sparse else ''}{way.format.upper()}"


def _duration(row: Row) -> str:
    return spread(row.timed, digits(row.timed.mean, 1), " s") if row.timed else UNKNOWN


def _listed(rows: Sequence[Row]) -> str:
    if len(rows) > MAX_NAMED:
        return f"{len(rows)} settings"
    *others, last = map(spoken, rows)
    return f"{', '.join(others)} and {last}" if others else last
