"""Decide for each setting of a group: no loss against the control, a loss, or not enough seeds to tell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mpx.compare.comparison import Decision, Look, Method, Population, Row, Verdict
from mpx.compare.looks import Plan
from mpx.compare.metric import Metric
from mpx.compare.run import Run
from mpx.compare.sampled import population, sampled, settled
from mpx.compare.statistics import Finding, examine, holm, more_seeds

SAME_LENGTH = 0.98  # share of another number of steps from which on both count as the same


@dataclass(frozen=True)
class _Pair:
    """The runs of a setting and of its control that count for the decision: all of them, or with a plan those of the latest look."""

    row: Row
    control: Row
    look: int | None  # its number, 0 before the first; None without a plan


def decisions(
    control: Row, rows: Iterable[Row], metric: Metric, margin: float, confidence: float, margin_for: str, plan: Plan | None
) -> dict[str, Decision]:
    """Setting -> decision, corrected for looks and, by Holm's method, for all tested settings. Empty if no run of the control completed."""
    if not values(control.runs, metric):
        return {}
    rows = list(rows)
    alike = [control, *(row for row in rows if row.runs[0].plain == control.runs[0].plain)]
    compared = [row for row in rows if row.metric or _diverged(row, control)]
    other = {row.setting: reason for row in compared if (reason := _other_length(row, alike)) is not None}
    pairs = {row.setting: _pair(row, control, plan) for row in compared if row.setting not in other}
    findings: dict[str, Finding] = {}
    there: dict[str, Population] = {}
    for name, pair in pairs.items():
        mine, theirs = values(pair.row.runs, metric), values(pair.control.runs, metric)
        if mine and theirs:
            at_look = confidence if plan is None else plan.confidence_at(pair.look, confidence)
            by_seed = examine(mine, theirs, metric, margin, at_look)
            by_sample = sampled(pair.row, pair.control, metric, margin)
            findings[name], there[name] = settled(by_seed, by_sample, margin_for), population(by_sample, at_look)
    tested = {name: finding for name, finding in findings.items() if finding.p_no_loss is not None}
    no_loss = _corrected({name: finding.p_no_loss for name, finding in tested.items()}, pairs, plan)
    loss = _corrected({name: finding.p_loss for name, finding in tested.items()}, pairs, plan)
    level = 1 - confidence
    decided = {name: _decision(pair, findings.get(name), there.get(name), no_loss, loss, level, plan) for name, pair in pairs.items()}
    return decided | {name: _not_comparable(reason) for name, reason in other.items()}


def _not_comparable(reason: str) -> Decision:
    return Decision(Verdict.NOT_COMPARABLE, None, None, None, None, None, Method.LENGTH, None, reason)


def _other_length(row: Row, alike: Sequence[Row]) -> str | None:
    """Why the row trained for another number of steps than its control; None if it did not, or if the study sweeps that number.

    alike: the control and every other row of its precision and sparsity. A study sweeps the number of steps if one of them took as many.
    """
    steps = _steps(row)
    known = [found for one in alike if (found := _steps(one)) is not None]
    if steps is None or not known or any(_overlap(steps, one) for one in known):
        return None
    return f"it took {_span(steps)} optimizer steps, {alike[0].setting} {_span(known[0])}"


def _steps(row: Row) -> tuple[int, int] | None:
    """The least and the largest number of steps, taken or skipped, of its completed runs; None if unknown."""
    completed = [run for run in row.runs if run.status == "completed"]
    found = [run.optimizer_steps + (run.skipped_steps or 0) for run in completed if run.optimizer_steps is not None]
    return (min(found), max(found)) if found else None


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two ranges of steps overlap, but for a few: a random split of the data may leave a batch more or less."""
    return max(a[0], b[0]) * SAME_LENGTH <= min(a[1], b[1])


def _span(steps: tuple[int, int]) -> str:
    return f"{steps[0]:,}" if steps[0] == steps[1] else f"{steps[0]:,} to {steps[1]:,}"


def _pair(row: Row, control: Row, plan: Plan | None) -> _Pair:
    if plan is None:
        return _Pair(row, control, None)
    look = plan.reached(row, control)
    return _Pair(plan.at(look, row), plan.at(look, control), look)


def _corrected(p_values: Mapping[str, float], pairs: Mapping[str, _Pair], plan: Plan | None) -> dict[str, float]:
    """Setting -> p value after the corrections."""
    repeated = [p if plan is None else plan.repeated(p, pairs[name].look) for name, p in p_values.items()]
    return dict(zip(p_values, holm(repeated), strict=True))


def _decision(
    pair: _Pair, finding: Finding | None, there: Population | None, no_loss: Mapping[str, float], loss: Mapping[str, float], level: float,
    plan: Plan | None,
) -> Decision:  # fmt: skip
    """Decide one setting. A setting of which a larger share of seeds diverged than of its control loses, regardless of the other seeds.

    finding, there: for this test set and for the population; None if no run completed, or before the first look.
    no_loss, loss: setting -> corrected p. The number of further seeds is for Holm's strictest level.
    """
    reason, name, more = _diverged(pair.row, pair.control), pair.row.setting, None
    if reason or loss.get(name, 1.0) < level:
        verdict = Verdict.LOSS
    elif no_loss.get(name, 1.0) < level:
        verdict = Verdict.NO_LOSS
    else:
        verdict = Verdict.UNDECIDED
        more = more_seeds(finding, level / max(1, len(no_loss))) if finding and plan is None else None
    look = None if plan is None else _look(pair, finding, plan, level, go_on=verdict == Verdict.UNDECIDED)
    if finding is None:
        return Decision(verdict, None, None, None, None, None, Method.NONE, None, reason, look=look)
    return Decision(
        verdict, finding.difference, finding.low, finding.high, finding.p_no_loss, no_loss.get(name), finding.method, more, reason,
        loss.get(name), there, look,
    )  # fmt: skip


def _look(pair: _Pair, finding: Finding | None, plan: Plan, level: float, *, go_on: bool) -> Look:
    known = finding is not None and finding.p_no_loss is not None and finding.method != Method.CROSSED  # more seeds do not add test samples
    hopeless = known and plan.hopeless(min(finding.p_no_loss, finding.p_loss), pair.look, level)
    never = finding is not None and finding.method == Method.SIGNS
    return plan.look(pair.look, go_on=go_on and not hopeless and not never)


def _diverged(row: Row, control: Row) -> str | None:
    """`2 of 5 seeds diverged` if that is a larger share than the control's, else None."""
    if row.diverged * len(control.runs) <= control.diverged * len(row.runs):
        return None
    there = f", of {control.setting} {control.diverged} of {len(control.runs)}" if control.diverged else ""
    return f"{row.diverged} of {len(row.runs)} seeds diverged{there}"


def seeds_of_both(row: Row, control: Row, metric: Metric) -> int | None:
    """The number of seeds in a paired difference if either side has more; None if all seeds are paired, or none.

    With a plan of looks, only the seeds until the look.
    """
    look = row.decision.look if row.decision else None
    mine, theirs = (set(seen_at(look, one, metric)) for one in (row, control))
    return len(mine & theirs) if 2 <= len(mine & theirs) < max(len(mine), len(theirs)) else None


def seen_at(look: Look | None, row: Row, metric: Metric) -> dict[int, float]:
    """Seed -> value, over completed runs; with a look, of the seeds that it saw."""
    return {seed: value for seed, value in values(row.runs, metric).items() if look is None or seed < look.seeds}


def values(runs: Iterable[Run], metric: Metric) -> dict[int, float]:
    """Seed -> value, over completed runs."""
    return {run.seed: run.metrics[metric.name] for run in runs if run.status == "completed" and metric.name in run.metrics}
