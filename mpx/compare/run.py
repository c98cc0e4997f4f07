"""A run as mpx.compare knows it, from its result.json or a row of results.csv; and how it was served."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpx.runs.folder import DONE
from mpx.runs.result import Predictions

AUTO = "auto"
Changes = Mapping[str, str]  # key -> value as typed, sorted by key; a space in a value is spelled %20
RESUMED, CODE_HASHES = "resumed_from_steps", "code"  # parts of a run's environment


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
    # its processor, driver, versions of PyTorch and mpx, and its id; None: unknown
    host: str | None = None


@dataclass(frozen=True)
class Way:
    """How a model was served."""

    format: str
    sparse: bool  # some layers by 2:4 kernels
    backend: str

    @property
    def words(self) -> str:
        """`Sparse FP16`."""
        return f"{'Sparse' if self.sparse else 'Dense'} {self.format.upper()}"


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
    cpu_used_by_others: float | None = None  # share of the cores' time, of a model served on a CPU
    latency_by: str | None = None  # what served the smallest batch, if that was not `way`: `dense by graph`


@dataclass(frozen=True)
class Run:
    """One run's figures. None is unknown, shares are fractions, units are in the names. The columns of
    results.csv have the order of these fields; a field with a default is a column only where a run has a
    value. Raises ValueError for another status, and for metrics that no table can keep.
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
    folder: str | None  # relative to the study; None if the run no longer exists
    compiled: str | None = None  # the mode of torch.compile; None: no step was compiled
    label: str | None = None  # the user's name for the setting
    # a hash of the data's files, or of the samples that a function of the user's made
    contents: str | None = None
    metric: str | None = None  # that its record declares for comparisons; None: one of METRICS
    metric_goal: str | None = None  # max | min, of `metric`
    looks: str | None = None  # the plan of `until=decided` under which it was made, as JSON
    cpu_used_by_others: float | None = None  # share of the cores' time, of a run on a CPU
    environment: dict[str, Any] = field(default_factory=dict, compare=False)
    served: tuple[Served, ...] = field(default=(), compare=False)  # from deploy.json
    predictions: Predictions | None = field(default=None, compare=False)  # from predictions.json

    def __post_init__(self) -> None:
        if self.status not in DONE:
            raise ValueError(f"status is {self.status!r}")
        # the slash tells a metric's column from others
        if not all("/" in name and math.isfinite(value) for name, value in self.metrics.items()):
            raise ValueError(f"a metric is no number, or has no slash in its name: {self.metrics!r}")

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    @property
    def steps(self) -> int | None:
        """The length of its training: the steps that were taken and those that the loss scale skipped."""
        return None if self.optimizer_steps is None else self.optimizer_steps + (self.skipped_steps or 0)

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
