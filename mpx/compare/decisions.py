"""Decide for each setting of a group: no loss against the control, a loss, or not enough seeds to tell."""

from collections.abc import Iterable, Mapping

from mpx.compare.comparison import TEST_SET, Decision, Method, Metric, Population, Row, Run, Verdict
from mpx.compare.sampled import population, sampled, settled
from mpx.compare.statistics import Finding, examine, holm, more_seeds


def decisions(
    control: Row, rows: Iterable[Row], metric: Metric, margin: float, confidence: float, margin_for: str = TEST_SET
) -> dict[str, Decision]:
    """Setting -> decision, with Holm's correction over all tested settings. Empty if no run of the control completed."""
    theirs = values(control.runs, metric)
    if not theirs:
        return {}
    rows = {row.setting: row for row in rows if row.metric or _diverged(row, control)}
    findings = {
        name: examine(mine, theirs, metric, margin, confidence, alike=_alike(row, control))
        for name, row in rows.items()
        if (mine := values(row.runs, metric))
    }
    samples = {name: sampled(rows[name], control, metric, margin) for name in findings}
    findings = {name: settled(finding, samples[name], confidence, margin_for) for name, finding in findings.items()}
    there = {name: population(found, confidence) for name, found in samples.items()}
    tested = {name: finding for name, finding in findings.items() if finding.p_no_loss is not None}
    no_loss = dict(zip(tested, holm([finding.p_no_loss for finding in tested.values()]), strict=True))
    loss = dict(zip(tested, holm([finding.p_loss for finding in tested.values()]), strict=True))
    level = 1 - confidence
    return {name: _decision(row, control, findings.get(name), there.get(name), no_loss, loss, level) for name, row in rows.items()}


def _decision(
    row: Row, control: Row, finding: Finding | None, there: Population | None, no_loss: Mapping[str, float], loss: Mapping[str, float],
    level: float,
) -> Decision:  # fmt: skip
    """Decide one setting. If a larger share of its seeds diverged than of the control's, it loses, whatever the other seeds show.

    finding, there: for this test set and for the population; None if no run completed. no_loss, loss: setting -> corrected p. The number of
    further seeds is for Holm's strictest level.
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
        loss.get(name), there,
    )  # fmt: skip


def _diverged(row: Row, control: Row) -> str | None:
    """`2 of 5 seeds diverged` if that is a larger share than the control's, else None."""
    if row.diverged * len(control.runs) <= control.diverged * len(row.runs):
        return None
    there = f", of {control.setting} {control.diverged} of {len(control.runs)}" if control.diverged else ""
    return f"{row.diverged} of {len(row.runs)} seeds diverged{there}"


def _alike(row: Row, control: Row) -> bool:
    """Whether both runs of each shared seed, of at least two, agree in every metric including the losses: they computed the same."""
    theirs = {run.seed: run.metrics for run in control.runs if run.status == "completed"}
    shared = [(run.metrics, theirs[run.seed]) for run in row.runs if run.status == "completed" and run.seed in theirs]
    return len(shared) > 1 and all(mine == other for mine, other in shared)


def seeds_of_both(row: Row, control: Row, metric: Metric) -> int | None:
    """The number of seeds in a paired difference if either side has more; None if all seeds are paired, or none."""
    shared = len(values(row.runs, metric).keys() & values(control.runs, metric).keys())
    return shared if 2 <= shared < max(row.metric.n, control.metric.n) else None


def values(runs: Iterable[Run], metric: Metric) -> dict[int, float]:
    """Seed -> value, over completed runs."""
    return {run.seed: run.metrics[metric.name] for run in runs if run.status == "completed" and metric.name in run.metrics}
