"""The answer in one sentence: the fastest setting at no loss, how much faster, and how sure that is; or why there is none."""

from collections import Counter
from collections.abc import Sequence

from mpx.compare.comparison import METRICS, Group, Metric, Row, Speedup
from mpx.compare.decisions import seeds_of_both
from mpx.compare.speed import ratio
from mpx.compare.words import decided, difference, metric_spec, spread

FEW = 3  # settings that a sentence can name one by one
NEAR = 1.05  # times as fast; runs of one setting on a GPU of their own differ by 1 or 2 %


def train_verdict(group: Group, margin: float, confidence: float) -> str:
    metric = METRICS[group.metric]
    silent = _nothing_to_say(group)
    if silent:
        return f"No verdict: {silent}."
    control, *others = group.rows
    good = [row for row in others if row.decision and row.decision.verdict == "no loss"]
    if not good:
        return f"No setting is shown to train at {_no_loss(metric)}. {_states(others)}."
    timed = [row for row in good if row.speedup]
    if not timed:
        reasons = "; ".join(dict.fromkeys(str(row.speed_note) for row in good))
        return f"At {_no_loss(metric)}: {_listed(good, others)}. Which setting is fastest to train is not known ({reasons})."
    best = max(timed, key=lambda row: row.speedup.ratio)
    unknown = _undecided(best, others) + _not_compared([row for row in good if not row.speedup], metric)
    if best.speedup.ratio <= 1:
        return (
            f"Fastest to train at {_no_loss(metric)}: {control.setting} itself; of the others, {best.setting} comes nearest, "
            f"{times(best.speedup, control.setting, confidence)}{unknown}."
        )
    faster = times(best.speedup, control.setting, confidence) + _by_chance(best.speedup)
    rivals = _rivals(best, timed, confidence)
    return f"Fastest to train at {_no_loss(metric)}: {best.setting}, {faster}; {evidence(best, control, metric, margin)}{rivals}{unknown}."


def _rivals(best: Row, timed: Sequence[Row], confidence: float) -> str:
    """Settings whose throughput cannot be told from the fastest one's; of single runs, which have no interval, those within NEAR."""
    pairs = [(row, ratio(best.throughput, row.throughput, confidence)) for row in timed if row is not best]
    rows = [row for row, ahead in pairs if (ahead.ratio < NEAR if ahead.low is None else ahead.low <= 1)]
    return f"; perhaps as fast, also at no loss: {_few(rows)}" if rows else ""


def _undecided(best: Row, others: Sequence[Row]) -> str:
    """Settings faster than the fastest at no loss (the control, where none is faster), of which the seeds cannot tell whether they lose."""
    rows = [row for row in others if row.speedup and row.speedup.ratio > max(1.0, best.speedup.ratio)]
    rows = [row for row in rows if row.decision and row.decision.verdict.startswith("not")]
    return f"; faster, but not enough seeds to tell: {_few(rows)}" if rows else ""


def _few(rows: Sequence[Row]) -> str:
    return ", ".join(row.setting for row in rows) if len(rows) <= FEW else f"{len(rows)} others"


def _not_compared(rows: Sequence[Row], metric: Metric) -> str:
    """Settings that might be faster still."""
    if not rows:
        return ""
    return f"; also at {_no_loss(metric)}, their speed not compared: {_few(rows)}"


def serve_verdict(group: Group, confidence: float) -> str:
    """Of the control and the settings at no loss that were deployed; empty where none was."""
    deployed = [row for row in group.rows if row.serve]
    if not deployed:
        return ""
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


def _states(rows: Sequence[Row]) -> str:
    """Each setting with what is known of it; of many settings how often that is, and which could be decided soonest."""
    if len(rows) <= FEW:
        return "; ".join(f"{row.setting}: {decided(row.decision) if row.decision else 'no result'}" for row in rows)
    count = Counter(row.decision.verdict if row.decision else "no result" for row in rows)
    soon = min((row for row in rows if row.decision and row.decision.more_seeds), key=lambda row: row.decision.more_seeds, default=None)
    nearest = f"; {soon.setting} is nearest, about {soon.decision.more_seeds} more seeds would tell" if soon else ""
    return f"{len(rows)} settings: " + ", ".join(f"{number} {what}" for what, number in count.most_common()) + nearest


def times(speedup: Speedup, control: str, confidence: float) -> str:
    interval = "" if speedup.low is None else f" ({speedup.low:.2f} to {speedup.high:.2f}, {confidence * 100:g} % confidence)"
    return f"{speedup.ratio:.2f} times as fast as {control}{interval}"


def _by_chance(speedup: Speedup) -> str:
    if speedup.low is None:
        return ", from too few runs to say how surely"
    return ", which may be chance" if speedup.low <= 1 else ""


def evidence(row: Row, control: Row, metric: Metric, margin: float) -> str:
    """Both means, their difference with its interval, and the margin. A paired difference is that of the seeds which both have."""
    seeds = f"{row.metric.n}" if row.metric.n == control.metric.n else f"{row.metric.n} and {control.metric.n}"
    shared = seeds_of_both(row, control, metric)
    paired = f" over the {shared} that both have" if shared else ""
    allowed = f"{margin * 100:g} % of {control.setting}'s" if metric.relative else f"{margin:g}"
    spec = metric_spec(metric.name)
    return (
        f"{metric.words} {spread(row.metric, spec)} against {spread(control.metric, spec)} over {seeds} seeds, "
        f"difference {difference(row.decision, spec)}{paired}, margin {allowed}"
    )


def _listed(rows: Sequence[Row], of: Sequence[Row] = ()) -> str:
    return f"all {len(rows)} others" if FEW < len(rows) == len(of) else ", ".join(row.setting for row in rows)
