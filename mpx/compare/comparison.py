"""The data model of a comparison. aggregate.py builds it; tables, plots and reports show it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from mpx.printing import how_many
from mpx.runs.predictions import Predictions
from mpx.runs.record import BESIDE

Changes = Mapping[str, str]  # key -> value as typed, sorted by key; a space in a value is spelled %20
# Parts of a run's environment. PROMISED: the share of the FLOPs in the formats of its precision, where that is small. UNVERIFIED: true
# where nothing has looked at the weights for the pattern that the setting names.
RESUMED, CODE_HASHES, SAMPLES, PROMISED, UNVERIFIED = "resumed_from_steps", "code", "samples", "as_promised", "pattern_not_verified"


def text_of(changes: Changes) -> str:
    """`key=value key=value`, or "" for none."""
    return " ".join(f"{key}={value}" for key, value in changes.items())


def changes_of(text: str) -> dict[str, str]:
    """The reverse of text_of. Raises ValueError for a word without "="."""
    return dict(sorted(word.split("=", 1) for word in text.split()))


@dataclass(frozen=True)
class ServingPlace:
    """Where a model was served, and with how many samples per call. Only speeds of one place are compared."""

    device: str
    smallest: int  # at which latency is shown
    largest: int  # at which throughput is shown and compared
    host: str | None = None  # its processor, driver, versions of PyTorch and mpx, and which it is; None: unknown


@dataclass(frozen=True)
class Way:
    """How a model was served."""

    format: str
    sparse: bool  # some layers by 2:4 kernels
    backend: str
    tuned: bool = False  # with weights that were fine-tuned for 8 bits
    asked: str | None = None  # `format=int8 weights=auto`: what mpx.deploy was asked for

    @property
    def words(self) -> str:
        """`Sparse FP16`."""
        asked = f" ({self.asked})" if self.asked else ""
        return f"{'Sparse' if self.sparse else 'Dense'} {self.format.upper()}{', fine-tuned' if self.tuned else ''}{asked}"


@dataclass(frozen=True)
class Served:
    """A row of deploy.json."""

    place: ServingPlace
    way: Way
    metrics: dict[str, float]  # of METRICS, and the one that the run is judged by
    latency_ms_p50: float
    latency_ms_p99: float
    samples_per_s: float
    weights_gib: float
    exclusive: bool | None
    accurate: bool  # almost as accurate as after training
    latency_by: str | None = None  # what served the smallest batch, if that was not `way`: `dense by graph`


@dataclass(frozen=True)
class Run:
    """One run's figures as in a row of results.csv, whose columns have the order of these fields. None is unknown, shares are fractions,
    units are in the names. A field with a default is a column only where a run has a value.
    """

    model: str
    data: str
    precision: str
    sparsity: str
    changes: Changes  # every other setting that changes the result
    seed: int
    status: str  # completed | diverged
    metrics: dict[str, float]  # test/accuracy, test/loss, test/perplexity, val/…
    batch_size: int | None
    device: str | None
    train_samples_per_s: float | None
    step_ms_p50: float | None
    model_tflops_per_s: float | None
    time_to_train_s: float | None
    exclusive: bool | None
    emulated: bool | None
    peak_gib: float | None  # allocated on the device, or resident in RAM on a CPU
    loss_scale_final: float | None
    optimizer_steps: int | None
    skipped_steps: int | None
    gradient_underflow: float | None
    gradient_underflow_unscaled: float | None
    density: float | None  # over pruned layers
    kept_magnitude: float | None
    serve_samples_per_s: float | None  # from deploy.json
    folder: str | None  # relative to the study; None if the run no longer exists
    speed_measured: str | None = None  # how, if the speed is not simply the run's own; as in its record
    compiled: str | None = None  # the mode of torch.compile; None: no step was compiled
    label: str | None = None  # the user's name for the setting
    contents: str | None = None  # a hash of the data's files, or of the samples that a function of the user's made
    metric: str | None = None  # that its record declares for comparisons; None: one of METRICS
    metric_goal: str | None = None  # max | min, of `metric`
    own_task: bool | None = None  # True: the user's project or loop, whose metrics may have any scale; None: one of mpx's tasks
    looks: str | None = None  # the plan of `until=decided` under which it was made, as JSON
    environment: dict[str, Any] = field(default_factory=dict, compare=False)
    config: dict[str, Any] = field(default_factory=dict, compare=False)  # all settings that change the result; {} if read from results.csv
    served: tuple[Served, ...] = field(default=(), compare=False)  # from deploy.json
    predictions: Predictions | None = field(default=None, compare=False)  # from predictions.json

    @property
    def measured_alone(self) -> bool:
        """Whether the speed was measured after the sweep, once for the setting, and is therefore the same for all of its runs."""
        return self.speed_measured not in (None, BESIDE)

    @property
    def resumed(self) -> bool:
        return bool(self.environment.get(RESUMED))

    @property
    def plain(self) -> str:
        """`amp-2of4`: precision and sparsity only."""
        return f"{self.precision}-{self.sparsity}"

    @property
    def setting(self) -> str:
        """`amp-2of4 key=value`: what distinguishes the run from others of its model and data set."""
        return " ".join(filter(None, (self.plain, text_of(self.changes))))


COMPOUND = ("metrics", "environment", "config", "served", "predictions")  # fields that are not a single value
SIMPLE: dict[str, Any] = {field.name: field.type for field in fields(Run) if field.name not in ("changes", *COMPOUND)}
RATES = ("train_samples_per_s", "serve_samples_per_s")


@dataclass(frozen=True)
class Metric:
    """A metric by which settings are compared."""

    name: str  # test/accuracy
    words: str  # test accuracy
    sign: int  # 1: higher is better; -1: lower is better
    relative: bool  # True: the margin is a share of the control's mean; False: it has the metric's unit
    spec: str = ".4f"  # how its values are printed

    def allowed(self, margin: float, mean: float) -> float:
        """The largest loss that does not matter, in the metric's unit. mean: the control's."""
        return margin * abs(mean) if self.relative else margin


METRICS = {
    "test/accuracy": Metric("test/accuracy", "test accuracy", 1, relative=False),
    "test/perplexity": Metric("test/perplexity", "test perplexity", -1, relative=True, spec=".2f"),
}
GOALS = {"max": 1, "min": -1}
SMALL = 10  # a perplexity below, as of characters, has differences that two decimals would round to zero
TEST_SET, POPULATION = "test_set", "population"  # what a margin is for


def metric_of(name: str, goal: str) -> Metric:
    """The metric that a record declares as `"metric": {"name": …, "goal": "max" | "min"}`.

    A metric that should rise is taken for a share, such as an accuracy, and its margin has its unit. A metric that should fall may have any
    scale, such as a perplexity, and its margin is a share of the control's value.
    """
    falls = goal == "min"
    return METRICS.get(name) or Metric(name, name.replace("/", " "), GOALS[goal], relative=falls, spec="#.4g" if falls else ".4f")


def to_print(metric: Metric, values: Iterable[Any]) -> Metric:
    """The metric with the decimals that such values need. values: of runs; any that is no number does not count."""
    small = metric.spec == ".2f" and any(isinstance(value, (int, float)) and abs(value) < SMALL for value in values)
    return replace(metric, spec=".4f") if small else metric


def judged_by(metrics: Mapping[str, Any], name: str | None = None, goal: str | None = None) -> Metric:
    """The metric by which a run with `metrics` is judged: the one of this name and goal, if its record declares one; else the perplexity or
    the accuracy. A language model has both."""
    if name is not None and goal is not None:
        return to_print(metric_of(name, goal), [metrics.get(name)])
    found = METRICS["test/perplexity" if "test/perplexity" in metrics else "test/accuracy"]
    return to_print(found, [metrics.get(found.name)])


def judged_by_record(record: Mapping[str, Any]) -> Metric:
    """`judged_by` for a run's record, or the parts of it that a sweep keeps."""
    return judged_by(record["metrics"], **(record.get("metric") or {}))


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


class Method(StrEnum):
    """How a difference was tested."""

    PAIRED = "paired t"
    WELCH = "Welch"
    EXACT = "exact"  # no variance: the difference is known
    EQUAL = "equal seeds"  # no variance, but too few seeds, or a difference too close to the margin, to rely on that
    NONE = "none"  # a side has fewer than two values
    SIGNS = "both signs"  # the margin is a share of values below and above zero, which is none
    UNSAMPLED = "no predictions"  # the margin is for the population, but the runs have no predictions
    TURNED = "samples that turn"  # the seeds tie, but single test samples change between right and wrong
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
    low: float | None  # two-sided confidence interval of the difference; None if the seeds show no spread
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
