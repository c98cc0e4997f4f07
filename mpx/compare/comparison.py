"""The data model of a comparison: a Question goes in, a Comparison comes out. Tables, plots and reports show
it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from mpx.compare.looks import Look, Plan
from mpx.compare.run import Changes, Run, Way
from mpx.runs.result import METRICS, Metric
from mpx.system.printing import how_many

TEST_SET, POPULATION = "test_set", "population"  # what a margin is for


@dataclass(frozen=True)
class Question:
    """What a comparison is to find out, by the keys of conf/compare.yaml."""

    control: str  # auto, `precision-sparsity`, or a full setting
    # test/accuracy, test/perplexity or auto: what the runs declare, else perplexity for language models, else
    # accuracy
    metric: str
    margin: float
    confidence: float
    metric_goal: str  # max, min or auto
    margin_is: str  # absolute, relative or auto
    margin_for: str  # TEST_SET or POPULATION
    plan: Plan | None = None  # of looks, under which the runs were made

    @property
    def level(self) -> float:
        """The error probability of a decision."""
        return 1 - self.confidence


@dataclass(frozen=True)
class Estimate:
    mean: float
    std: float | None  # sample standard deviation; None for a single value
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Of at least one value."""
        mean = math.fsum(values) / len(values)
        squares = math.fsum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else None, len(values))


def estimate(values: Sequence[float]) -> Estimate | None:
    return Estimate.of(values) if values else None


class Verdict(StrEnum):
    """Is a setting's metric no worse than the control's by more than the margin?"""

    NO_LOSS = "no loss"
    LOSS = "loss"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"


class Method(StrEnum):
    """How a difference was tested."""

    PAIRED = "paired t"
    WELCH = "Welch"
    TIED = "equal seeds"  # all values of one side are equal, so that their scatter is unknown
    LENGTH = "other length"  # it trained for another number of steps than the control
    NONE = "none"  # a side has fewer than two values
    UNSAMPLED = "no predictions"  # the margin is for the population, but the runs have no predictions
    CROSSED = "seeds and samples"  # for the population that the test set is a sample of


@dataclass(frozen=True)
class Population:
    """Two-sided confidence interval of a difference for the population of samples that the test set was drawn
    from.
    """

    low: float | None
    high: float | None
    reason: str | None = None  # why there is none


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    method: Method
    reason: str | None = None  # set if something other than the test decided: "1 of 5 seeds diverged"
    # setting − control, in the metric's unit; None if no run of the setting completed
    difference: float | None = None
    # two-sided confidence interval of the difference; None if a side shows no spread
    low: float | None = None
    high: float | None = None
    # one-sided, for the hypothesis that the loss is the margin or more; None if nothing was tested
    p: float | None = None
    # the same corrected for looks, and by Holm's method over the group's settings
    p_holm: float | None = None
    # for the opposite hypothesis, that the loss is at most the margin; also corrected
    p_loss_holm: float | None = None
    # estimate of how many more seeds would decide; None if decided, unknown, or above 100
    more_seeds: int | None = None
    population: Population | None = None  # low and high are for this test set
    look: Look | None = None  # None without a plan of looks

    @property
    def p_decided(self) -> float | None:
        """The p value of the deciding test: the test for a loss if the verdict is a loss, otherwise the test
        for no loss.
        """
        if self.verdict != Verdict.LOSS:
            return self.p_holm
        return None if self.reason else self.p_loss_holm


@dataclass(frozen=True)
class Speedup:
    ratio: float  # setting's mean throughput ÷ control's
    low: float | None  # two-sided confidence interval (Fieller)
    high: float | None


@dataclass(frozen=True)
class Row:
    """One setting: its runs (newest per seed), aggregated over seeds."""

    # `amp-2of4 key=value`, without the changes that all rows of the group share; or the user's label
    setting: str
    runs: tuple[Run, ...]
    metric: Estimate | None  # over completed runs
    throughput: Estimate | None  # over runs whose speed counts
    speed_note: str | None  # why there is no speed-up, in words
    peak_gib: Estimate | None  # over the runs on one device
    time_to_train_s: Estimate | None  # over the runs whose time counts, or else over all completed runs
    skipped_steps: Estimate | None
    density: Estimate | None
    underflow: Estimate | None = None  # share of the gradients that underflow to zero in the sampled steps
    # throughput on a device that may have been shared, if no run's speed counts
    shared: Estimate | None = None
    cpu_used_by_others: Estimate | None = None  # share of the cores' time, over the runs of `shared`
    timed: Estimate | None = None  # time to train, s, over the runs of `throughput` that were not resumed
    decision: Decision | None = None  # None for the control
    speedup: Speedup | None = None
    sooner: Speedup | None = None  # the control's time to train ÷ the setting's
    serve: Estimate | None = None  # throughput by the fastest way to serve it at Group.served_at
    served_by: Way | None = None  # that of `serve`

    @property
    def completed(self) -> list[Run]:
        return [run for run in self.runs if run.completed]

    @property
    def diverged(self) -> int:
        return len(self.runs) - len(self.completed)

    @property
    def no_loss(self) -> bool:
        return self.decision is not None and self.decision.verdict == Verdict.NO_LOSS


@dataclass(frozen=True)
class Group:
    """All settings of one model and data set that have the same control."""

    model: str
    data: str
    control: str | None  # its setting; None if the study has no such run
    rows: tuple[Row, ...]  # the control first, then by speed-up, fastest first
    train_verdict: str  # one sentence
    serve_verdict: str  # empty if nothing was deployed
    notes: tuple[str, ...]  # caveats: other devices, looks, shared devices
    # by which its settings are compared; groups of a study may differ
    metric: Metric = METRICS["test/accuracy"]
    changes: Changes = field(default_factory=dict)  # settings beyond the four choices that all rows share
    # device, batch size and host at which `Row.serve` was measured
    served_at: tuple[str, int, str | None] | None = None
    evidence: str = ""  # for train_verdict; empty if the setting that it names has no result
    time_verdict: str = ""  # empty unless another setting is shown to finish training earlier

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]


@dataclass(frozen=True, repr=False)
class Comparison:
    study: str
    question: Question
    groups: tuple[Group, ...]
    left_out: tuple[tuple[str, str], ...]  # (folder relative to the study, reason)
    folder: Path  # outputs/<study>
    commands: tuple[str, ...]  # commands that repeat the study

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    def _repr_html_(self) -> str:
        """For a notebook: sentences, tables and pictures of all groups."""
        from mpx.render.html import in_notebook  # matplotlib

        return in_notebook(self)

    def __repr__(self) -> str:
        runs = how_many(len(self.runs), "run")
        return (
            f"<Comparison of {self.study}: {how_many(len(self.groups), 'group')}, {runs}, "
            f"{len(self.left_out)} left out>"
        )
