"""The answer in one sentence: the fastest setting at no loss, how much faster, and how sure that is; or why there is none."""

from collections.abc import Sequence

from mpx.report.comparison import METRICS, Decision, Estimate, Group, Metric, Row, Speedup
from mpx.report.speed import ratio

NOT_DEPLOYED = "Fastest to serve: nothing was deployed yet; python -m mpx.deploy measures it."


def train_verdict(group: Group, margin: float, confidence: float) -> str:
    metric = METRICS[group.metric]
    silent = _nothing_to_say(group)
    if silent:
        return f"No verdict: {silent}."
    control, *others = group.rows
    good = [row for row in others if row.decision and row.decision.verdict == "no loss"]
    if not good:
        return f"No setting is shown to train at {_no_loss(metric)}: {'; '.join(_state(row) for row in others)}."
    timed = [row for row in good if row.speedup]
    if not timed:
        reasons = "; ".join(f"{row.setting}: {row.speed_note}" for row in good)
        return f"At {_no_loss(metric)}: {_listed(good)}; which of them is fastest to train is not known ({reasons})."
    best = max(timed, key=lambda row: row.speedup.ratio)
    if best.speedup.ratio <= 1:
        return (
            f"Fastest to train at {_no_loss(metric)}: {control.setting} itself; of the others, {best.setting} comes nearest, "
            f"{times(best.speedup, control.setting, confidence)}."
        )
    faster = times(best.speedup, control.setting, confidence) + _by_chance(best.speedup)
    return f"Fastest to train at {_no_loss(metric)}: {best.setting}, {faster}; {evidence(best, control, metric, margin)}."


def serve_verdict(group: Group, confidence: float) -> str:
    """Of the control and the settings at no loss that were deployed."""
    deployed = [row for row in group.rows if row.serve]
    if not deployed:
        return NOT_DEPLOYED
    silent, metric = _nothing_to_say(group), METRICS[group.metric]
    if silent:
        return f"Fastest to serve: no verdict, {silent}."
    control = group.rows[0]
    good = [row for row in deployed if row is control or (row.decision and row.decision.verdict == "no loss")]
    if control.serve and any(run.device != control.runs[0].device for row in good for run in row.runs):
        return "Fastest to serve: no verdict, the settings ran on different devices."
    if not good:
        return f"Fastest to serve: none of the deployed settings ({_listed(deployed)}) is shown to be at {_no_loss(metric)}."
    best = max(good, key=lambda row: row.serve.mean)
    found = ratio(best.serve, control.serve, confidence)
    against = f"{control.setting} was not deployed" if found is None else times(found, control.setting, confidence) + _by_chance(found)
    against = "the control itself" if best is control else against
    return f"Fastest to serve at {_no_loss(metric)}: {best.setting}, {best.serve.mean:,.0f} samples/s; {against}."


def _nothing_to_say(group: Group) -> str | None:
    if group.control is None:
        return "no run of the control to compare with"
    control = group.rows[0]
    if control.metric is None:
        return f"no run of {control.setting}, the control, completed with {group.metric}"
    return None if len(group.rows) > 1 else f"there is nothing to compare {control.setting} with"


def _no_loss(metric: Metric) -> str:
    return f"no loss of {metric.name.partition('/')[2]}" if metric.sign > 0 else f"no worse {metric.name.partition('/')[2]}"


def _state(row: Row) -> str:
    return f"{row.setting} {decided(row.decision)}" if row.decision else f"{row.setting} has no result"


def decided(decision: Decision) -> str:
    """The verdict and what it rests on: `not enough seeds to tell, about 3 more would`."""
    if decision.verdict.startswith("not"):
        if decision.method == "none":
            return f"{decision.verdict}, it takes at least 2 of each"
        more = f"about {decision.more_seeds} more would" if decision.more_seeds else "nor would 1,000 be"
        return f"{decision.verdict}, {more}"
    return decision.verdict + (f", {decision.reason}" if decision.reason else "")


def times(speedup: Speedup, control: str, confidence: float) -> str:
    interval = "" if speedup.low is None else f" ({speedup.low:.2f} to {speedup.high:.2f}, {confidence * 100:g} % confidence)"
    return f"{speedup.ratio:.2f} times as fast as {control}{interval}"


def _by_chance(speedup: Speedup) -> str:
    if speedup.low is None:
        return ", from too few runs to say how surely"
    return ", which may be chance" if speedup.low <= 1 else ""


def evidence(row: Row, control: Row, metric: Metric, margin: float) -> str:
    """Both means, their difference with its interval, and the margin."""
    seeds = f"{row.metric.n}" if row.metric.n == control.metric.n else f"{row.metric.n} and {control.metric.n}"
    allowed = f"{margin * 100:g} % of {control.setting}'s" if metric.relative else f"{margin:g}"
    return (
        f"{metric.words} {mean_std(row.metric, metric)} against {mean_std(control.metric, metric)} over {seeds} seeds, "
        f"difference {interval(row.decision, metric)}, margin {allowed}"
    )


def mean_std(found: Estimate, metric: Metric) -> str:
    places = _places(metric)
    return f"{found.mean:.{places}f}" + (f" ± {found.std:.{places}f}" if found.std is not None else "")


def interval(decision: Decision, metric: Metric, between: str = " ") -> str:
    """`+0.0004 (−0.0011 to +0.0019)`."""
    if decision.difference is None:
        return "–"
    bounds = "" if decision.low is None else f"{between}({_signed(decision.low, metric)} to {_signed(decision.high, metric)})"
    return _signed(decision.difference, metric) + bounds


def _signed(value: float, metric: Metric) -> str:
    return f"{value:+z.{_places(metric)}f}".replace("-", "−")


def _places(metric: Metric) -> int:
    return 2 if metric.relative else 4


def _listed(rows: Sequence[Row]) -> str:
    return ", ".join(row.setting for row in rows)
