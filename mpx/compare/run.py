"""A run as results.csv has it, and the ways in which it was served."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mpx.record.files import Predictions
from mpx.record.result import BESIDE

Changes = Mapping[str, str]  # key -> value as typed, sorted by key; a space in a value is spelled %20
RESUMED, CODE_HASHES, SAMPLES = "resumed_from_steps", "code", "samples"  # parts of a run's environment


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
