"""For each setting of a group: no loss against the control, a loss, or not enough seeds to tell."""

from collections.abc import Iterable, Mapping

from mpx.compare.comparison import Decision, Method, Metric, Row, Run, Verdict
from mpx.compare.statistics import Finding, examine, holm, more_seeds


def decisions(control: Row, rows: Iterable[Row], metric: Metric, margin: float, confidence: float) -> dict[str, Decision]:
    """Setting -> decision, corrected by Holm over all settings that could be tested. None are made when the control never completed."""
    theirs = values(control.runs, metric)
    if not theirs:
        return {}
    rows = {row.setting: row for row in rows if row.metric or _diverged(row, control)}
    findings = {
        name: examine(mine, theirs, metric, margin, confidence, alike=_alike(row, control))
        for name, row in rows.items()
        if (mine := values(row.runs, metric))
    }
    tested = {name: finding for name, finding in findings.items() if finding.p_no_loss is not None}
    no_loss = dict(zip(tested, holm([finding.p_no_loss for finding in tested.values()]), strict=True))
    loss = dict(zip(tested, holm([finding.p_loss for finding in tested.values()]), strict=True))
    level = 1 - confidence
    return {name: _decision(row, control, findings.get(name), no_loss, loss, level) for name, row in rows.items()}


def _decision(
    row: Row, control: Row, finding: Finding | None, no_loss: Mapping[str, float], loss: Mapping[str, float], level: float
) -> Decision:
    """Seeds that diverged count against a setting: with a larger share of them than the control it loses, whatever the others say.

    finding: None where no run completed. no_loss, loss: setting -> p, corrected. More seeds are asked for at Holm's strictest level.
    """
    reason = _diverged(row, control)
    if finding is None:
        return Decision(Verdict.LOSS, None, None, None, None, None, Method.NONE, None, reason)
    name, verdict, more = row.setting, Verdict.UNDECIDED, None
    if reason or loss.get(name, 1.0) < level:
        verdict = Verdict.LOSS
    elif no_loss.get(name, 1.0) < level:
        verdict = Verdict.NO_LOSS
    else:
        more = more_seeds(finding, level / max(1, len(no_loss)))
    return Decision(
        verdict, finding.difference, finding.low, finding.high, finding.p_no_loss, no_loss.get(name), finding.method, more, reason,
        loss.get(name),
    )  # fmt: skip


def _diverged(row: Row, control: Row) -> str | None:
    """`2 of 5 seeds diverged`, where that is a larger share than of the control's."""
    if row.diverged * len(control.runs) <= control.diverged * len(row.runs):
        return None
    there = f", of {control.setting} {control.diverged} of {len(control.runs)}" if control.diverged else ""
    return f"{row.diverged} of {len(row.runs)} seeds diverged{there}"


def _alike(row: Row, control: Row) -> bool:
    """Whether the two runs of each shared seed, two seeds at least, agree in every metric, losses too: they computed the same."""
    theirs = {run.seed: run.metrics for run in control.runs if run.status == "completed"}
    shared = [(run.metrics, theirs[run.seed]) for run in row.runs if run.status == "completed" and run.seed in theirs]
    return len(shared) > 1 and all(mine == other for mine, other in shared)


def seeds_of_both(row: Row, control: Row, metric: Metric) -> int | None:
    """The number of seeds that a paired difference is over, where either side has more; None: over all of them, or not paired."""
    shared = len(values(row.runs, metric).keys() & values(control.runs, metric).keys())
    return shared if 2 <= shared < max(row.metric.n, control.metric.n) else None


def values(runs: Iterable[Run], metric: Metric) -> dict[int, float]:
    """Seed -> value of the runs that completed."""
    return {run.seed: run.metrics[metric.name] for run in runs if run.status == "completed" and metric.name in run.metrics}
