"""Decide for each setting of a group: no loss against the control, a loss, undecided, or not
comparable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mpx.compare.comparison import Decision, Method, Population, Question, Row, Verdict
from mpx.compare.looks import Look, Plan
from mpx.compare.population import for_population, population, sampled
from mpx.compare.statistics import Finding, examine, holm, more_seeds
from mpx.runs.result import Metric

SAME_LENGTH = 0.98  # two trainings count as equally long if the shorter has this share of the steps


@dataclass(frozen=True)
class _Test:
    """A setting and its control with the runs that count: all of them, or with a plan those of the latest
    look.
    """

    row: Row
    control: Row
    look: int | None  # its number, 0 before the first; None without a plan
    other_length: str | None = None  # why it trained for another number of steps than the control
    finding: Finding | None = None  # None if no run completed, or before the first look
    population: Population | None = None


def decide(control: Row, rows: Sequence[Row], metric: Metric, question: Question) -> dict[str, Decision]:
    """Setting -> decision: test each, correct for looks and by Holm's method for several settings, decide.

    Empty if no run of the control completed.
    """
    if not values(control, metric):
        return {}
    alike = [control, *(row for row in rows if row.runs[0].plain == control.runs[0].plain)]
    compared = [row for row in rows if row.metric or _diverged(row, control)]
    tests = {row.setting: _test(row, control, alike, metric, question) for row in compared}
    findings = {name: test.finding for name, test in tests.items() if test.finding}
    no_loss = _corrected({name: one.p_no_loss for name, one in findings.items()}, tests, question.plan)
    loss = _corrected({name: one.p_loss for name, one in findings.items()}, tests, question.plan)
    strictest = question.level / max(1, len(no_loss))  # Holm's first level
    return {
        name: _decision(test, no_loss.get(name), loss.get(name), strictest, question)
        for name, test in tests.items()
    }


def _test(row: Row, control: Row, alike: Sequence[Row], metric: Metric, question: Question) -> _Test:
    """alike: the control and every other row of its precision and sparsity."""
    look, confidence = None, question.confidence
    if (reason := _other_length(row, alike)) is not None:
        return _Test(row, control, look, other_length=reason)
    if question.plan is not None:
        look = min(question.plan.reached({run.seed for run in one.runs}) for one in (row, control))
        row, control = (_until(question.plan.seeds_at(look), one) for one in (row, control))
        confidence = question.plan.confidence_at(look, confidence)
    setting, base = values(row, metric), values(control, metric)
    if not setting or not base:
        return _Test(row, control, look)
    by_sample = sampled(row, control, metric, question.margin)
    finding = for_population(
        examine(setting, base, metric, question.margin, confidence), by_sample, question.margin_for
    )
    return _Test(row, control, look, finding=finding, population=population(by_sample, confidence))


def _corrected(
    p_values: Mapping[str, float | None], tests: Mapping[str, _Test], plan: Plan | None
) -> dict[str, float]:
    """Setting -> p value after the corrections, of those that were tested."""
    tested = {name: p for name, p in p_values.items() if p is not None}
    repeated = [p if plan is None else plan.repeated(p, tests[name].look or 0) for name, p in tested.items()]
    return dict(zip(tested, holm(repeated), strict=True))


def _decision(
    test: _Test, no_loss: float | None, loss: float | None, strictest: float, question: Question
) -> Decision:
    """Decide one setting. A setting of which a larger share of seeds diverged than of its control loses,
    whatever the others say.

    no_loss, loss: corrected p; None if not tested. strictest: the level for which the number of further seeds
    is estimated.
    """
    if test.other_length:
        return Decision(Verdict.NOT_COMPARABLE, Method.LENGTH, test.other_length)
    reason, finding = _diverged(test.row, test.control), test.finding
    if reason or (loss is not None and loss < question.level):
        verdict = Verdict.LOSS
    elif no_loss is not None and no_loss < question.level:
        verdict = Verdict.NO_LOSS
    else:
        verdict = Verdict.UNDECIDED
    undecided = verdict == Verdict.UNDECIDED
    look = _look(test, question.plan, question.level, go_on=undecided) if question.plan else None
    if finding is None:
        return Decision(verdict, Method.NONE, reason, look=look)
    return Decision(
        verdict,
        finding.method,
        reason,
        difference=finding.difference,
        low=finding.low,
        high=finding.high,
        p=finding.p_no_loss,
        p_holm=no_loss,
        p_loss_holm=loss,
        more_seeds=more_seeds(finding, strictest) if undecided and look is None else None,
        population=test.population,
        look=look,
    )


def _look(test: _Test, plan: Plan, level: float, *, go_on: bool) -> Look:
    number, finding = test.look or 0, test.finding
    if finding is not None and finding.p_no_loss is not None and finding.p_loss is not None:
        more_help = finding.method != Method.CROSSED  # more seeds do not add test samples
        go_on = go_on and not (
            more_help and plan.hopeless(min(finding.p_no_loss, finding.p_loss), number, level)
        )
    further = plan.sizes[number] if go_on and number < plan.looks else None
    return Look(number, plan.looks, plan.seeds_at(number), further)


def _until(seeds: int, row: Row) -> Row:
    """The row as it was at a look: later seeds do not count."""
    return replace(row, runs=tuple(run for run in row.runs if run.seed < seeds))


def _diverged(row: Row, control: Row) -> str | None:
    """`2 of 5 seeds diverged` if that is a larger share than the control's, else None."""
    if row.diverged * len(control.runs) <= control.diverged * len(row.runs):
        return None
    base = f", of {control.setting} {control.diverged} of {len(control.runs)}" if control.diverged else ""
    return f"{row.diverged} of {len(row.runs)} seeds diverged{base}"


def _other_length(row: Row, alike: Sequence[Row]) -> str | None:
    """Why the row trained for another number of steps than its control; None if it did not, or if the study
    sweeps that number.

    A study sweeps the number of steps if a setting of the control's precision and sparsity took as many as
    this one. Runs that end early take different numbers; they are compared with others of the same kind.
    """
    if all(_ends_early(row) != _ends_early(one) for one in alike):
        ends = (f"{one.setting} {_ends_early(one) or 'does not'}" for one in (row, alike[0]))
        return f"one of them ends early (trainer.early_stopping): {', '.join(ends)}"
    if _ends_early(row):
        return None
    steps = _steps(row)
    known = [steps_of for one in alike if (steps_of := _steps(one)) is not None]
    if steps is None or not known or any(_overlap(steps, one) for one in known):
        return None
    return f"it took {_span(steps)} optimizer steps, {alike[0].setting} {_span(known[0])}"


def _ends_early(row: Row) -> str | None:
    """The value of trainer.early_stopping."""
    return row.runs[0].changes.get("trainer.early_stopping")


def _steps(row: Row) -> tuple[int, int] | None:
    """The least and the largest number of steps of its completed runs; None if unknown."""
    counts = [run.steps for run in row.completed if run.steps is not None]
    return (min(counts), max(counts)) if counts else None


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two ranges of steps overlap, but for a few: a random split of the data may leave a batch more
    or less.
    """
    return max(a[0], b[0]) * SAME_LENGTH <= min(a[1], b[1])


def _span(steps: Iterable[int]) -> str:
    return " to ".join(f"{count:,}" for count in dict.fromkeys(steps))


def values(row: Row, metric: Metric) -> dict[int, float]:
    """Seed -> value, over completed runs."""
    return {run.seed: run.metrics[metric.name] for run in row.completed if metric.name in run.metrics}
