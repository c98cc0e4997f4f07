"""The data model of a comparison. aggregate.py builds it; tables, plots and reports show it."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from mpx.compare.metric import METRICS, Metric
from mpx.compare.run import Changes, Run, Way
from mpx.printing import how_many

TEST_SET, POPULATION = "test_set", "population"  # what a margin is for


@dataclass(frozen=True)
class Estimate:
    mean: float
    std: float | None  # sample standard deviation; None for a single value
    n: int


class Verdict(StrEnum):
    """Is a setting's metric no worse than the control's by more than the margin?"""

    NO_LOSS = "no loss"
    LOSS = "loss"
    UNDECIDED = "not enough seeds to tell"
    NOT_COMPARABLE = "not comparable"


class Method(StrEnum):
    """How a difference was tested."""

    PAIRED = "paired t"
    WELCH = "Welch"
    TIED = "equal seeds"  # all values of a side are equal, which does not show how they scatter
    LENGTH = "other length"  # it trained for another number of steps than the control
    NONE = "none"  # a side has fewer than two values
    SIGNS = "both signs"  # the margin is a share of values below and above zero, which is none
    UNSAMPLED = "no predictions"  # the margin is for the population, but the runs have no predictions
    CROSSED = "seeds and samples"  # for the population that the test set is a sample of


@dataclass(frozen=True)
class Population:
    """Two-sided confidence interval of a difference for the population of samples that the test set was drawn from."""

    low: float | None
    high: float | None
    reason: str | None = None  # why there is none


@dataclass(frozen=True)
class Look:
    """The look of a plan at which a decision was made (looks.py)."""

    number: int  # 0: before the first
    of: int
    seeds: int
    further: int | None  # number of seeds of the next look; None if there is none, or it would hardly decide

    @property
    def words(self) -> str:
        """`look 2 of 5, at 8 seeds`."""
        return f"look {self.number} of {self.of}, at {self.seeds} seeds" if self.number else f"before the first of {self.of} looks"


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    difference: float | None  # setting − control, in the metric's unit; None if no run of the setting completed
    low: float | None  # two-sided confidence interval of the difference; None if a side shows no spread
    high: float | None
    p: float | None  # one-sided, for the hypothesis that the loss is the margin or more; None if nothing was tested
    p_holm: float | None  # the same corrected for looks, and by Holm's method over the group's settings
    method: Method
    more_seeds: int | None  # estimate of how many more would decide; None if decided, if too little is known, or above 1,000
    reason: str | None = None  # set if something other than the test decided: "1 of 5 seeds diverged"
    p_loss_holm: float | None = None  # for the opposite hypothesis, that the loss is at most the margin; also corrected
    population: Population | None = None  # low and high are for this test set
    look: Look | None = None  # None without a plan of looks

    @property
    def has_population(self) -> bool:
        return self.population is not None and self.population.low is not None

    @property
    def tested(self) -> tuple[float | None, float | None]:
        """The interval of what the margin is for."""
        return (self.population.low, self.population.high) if self.method == Method.CROSSED else (self.low, self.high)

    @property
    def p_decided(self) -> float | None:
        """The p value of the deciding test: the test for a loss if the verdict is a loss, otherwise the test for no loss."""
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

    setting: str  # `amp-2of4 key=value`, without the changes that all rows of the group share
    runs: tuple[Run, ...]
    diverged: int
    metric: Estimate | None  # over completed runs
    decision: Decision | None  # None for the control
    throughput: Estimate | None  # over runs whose speed counts
    speedup: Speedup | None
    speed_note: str | None  # why there is no speed-up, in words
    peak_gib: Estimate | None  # over the runs on one device
    time_to_train_s: Estimate | None  # over the runs whose time counts, or else over all completed runs
    skipped_steps: Estimate | None
    density: Estimate | None
    serve: Estimate | None  # throughput by the fastest way to serve it at Group.served_at
    underflow: Estimate | None = None  # share of the gradients that underflow to zero in the sampled steps
    shared: Estimate | None = None  # throughput on a device that may have been shared, if no run's speed counts
    served_by: Way | None = None  # that of `serve`
    timed: Estimate | None = None  # time to train, s, over the runs of `throughput` that were not resumed
    sooner: Speedup | None = None  # the control's time to train ÷ the setting's


@dataclass(frozen=True)
class Group:
    """All settings of one model and data set that have the same control."""

    model: str
    data: str
    control: str | None  # its setting; None if the study has no such run
    rows: tuple[Row, ...]  # the control first, then by speed-up, fastest first
    train_verdict: str  # one sentence
    serve_verdict: str  # one sentence; empty if nothing was deployed
    notes: tuple[str, ...]  # caveats: other batch sizes, other devices, emulation, shared devices
    metric: Metric = METRICS["test/accuracy"]  # by which its settings are compared; groups of a study may differ
    changes: Changes = field(default_factory=dict)  # settings beyond the four choices that all rows share
    served_at: tuple[str, int, str | None] | None = None  # device, batch size and host at which `Row.serve` was measured
    time_verdict: str = ""  # on the setting with the shortest time to train; empty if the times do not count

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]


@dataclass(frozen=True, repr=False)
class Comparison:
    study: str
    metric: str  # test/accuracy, test/perplexity or "auto": what the runs declare, else perplexity for language models, else accuracy
    margin: float
    confidence: float
    groups: tuple[Group, ...]
    left_out: tuple[tuple[str, str], ...]  # (folder relative to the study, reason)
    folder: Path  # outputs/<study>
    commands: tuple[str, ...]  # commands that repeat the study
    note: str = ""  # the user's text about the study
    margin_for: str = TEST_SET  # or POPULATION

    def __repr__(self) -> str:
        """In one line: a notebook shows it below the tables, if a cell ends with mpx.judge."""
        runs = how_many(sum(len(group.runs) for group in self.groups), "run")
        return f"<Comparison of {self.study}: {how_many(len(self.groups), 'group')}, {runs}, {len(self.left_out)} left out>"
