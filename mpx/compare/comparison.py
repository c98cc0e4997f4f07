"""What a comparison of runs consists of: plain data, filled in by `aggregate.py` and drawn by tables, plots and reports."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mpx.run.folder import DONE


@dataclass(frozen=True)
class Run:
    """One run's figures, flat, as in a row of results.csv; None where unknown. Shares are fractions, units are in the names."""

    model: str
    data: str
    precision: str
    sparsity: str
    changes: str  # every other setting that changes the result, as "key=value key=value", sorted, no space in a value; "" for none
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
    folder: str | None  # relative to the study; None once the run itself is no longer there
    environment: dict[str, Any] = field(default_factory=dict, compare=False)
    config: dict[str, Any] = field(default_factory=dict, compare=False)  # all settings that change the result; {} of a results.csv's row

    @property
    def plain(self) -> str:
        """`amp-2of4`: precision and sparsity alone."""
        return f"{self.precision}-{self.sparsity}"

    @property
    def setting(self) -> str:
        """`amp-2of4 key=value`: what distinguishes the run from others of its model and data."""
        return self.plain + (f" {self.changes}" if self.changes else "")


SIMPLE: dict[str, Any] = {field.name: field.type for field in fields(Run) if field.name not in ("metrics", "environment", "config")}
RATES = ("train_samples_per_s", "serve_samples_per_s")


def wrong(run: Run) -> tuple[str, Any] | None:
    """(field, value) of the first one that no run can have, of a record or table that mpx did not write; None where all can be."""
    texts = {name: run.environment[name] for name in ("command", "started_at") if name in run.environment}
    checks = (
        ((name, value) for name, kind in SIMPLE.items() if not _holds(value := getattr(run, name), kind)),
        ((name, value) for name in RATES if (value := getattr(run, name)) is not None and value <= 0),
        ((name, value) for name, value in run.metrics.items() if not math.isfinite(value)),
        (("environment", value) for value in texts.values() if not isinstance(value, str)),
        [("status", run.status)] if run.status not in DONE else [],
    )
    return next((found for check in checks for found in check), None)


def _holds(value: Any, kind: Any) -> bool:
    """Whether the value is of this kind, and a number one can count with."""
    if isinstance(value, bool):
        return kind == (bool | None)
    if isinstance(value, (int, float)) and not math.isfinite(value):
        return False
    return isinstance(value, kind) or (kind == (float | None) and isinstance(value, int))


@dataclass(frozen=True)
class Metric:
    """By what settings are compared."""

    name: str  # test/accuracy
    words: str  # test accuracy
    sign: int  # 1: higher is better; -1: lower is better
    relative: bool  # the margin is a share of the control's mean, else in the metric's own unit


METRICS = {
    "test/accuracy": Metric("test/accuracy", "test accuracy", 1, relative=False),
    "test/perplexity": Metric("test/perplexity", "test perplexity", -1, relative=True),
}


@dataclass(frozen=True)
class Estimate:
    mean: float
    std: float | None  # sample standard deviation; None for a single value
    n: int


@dataclass(frozen=True)
class Decision:
    """Is this setting's metric no worse than the control's, by more than the margin?"""

    verdict: str  # "no loss" | "loss" | "not enough seeds to tell"
    difference: float | None  # setting − control, in the metric's own unit; None where no run of the setting completed
    # two-sided confidence interval of the difference; None with fewer than two values on a side, or too few that all agree
    low: float | None
    high: float | None
    p: float | None  # one-sided: of the hypothesis that the loss is the margin or more; None like low and high
    p_holm: float | None  # the same after Holm's correction over the group's settings
    # "paired t" | "Welch" | "exact" (no variance: the difference is known) | "equal seeds" (no variance, too few or too near the margin)
    # | "none" (fewer than two values on a side)
    method: str
    more_seeds: int | None  # about how many more would tell, where that is the verdict; None where too little is known, or over 1,000
    reason: str | None = None  # where something else than the test decided: "1 of 5 seeds diverged"
    p_loss_holm: float | None = None  # of the opposite hypothesis, that the loss is at most the margin; corrected likewise

    @property
    def p_decided(self) -> float | None:
        """What the verdict rests on: of a loss the p value of the test for one, else that of the test for none."""
        if self.verdict != "loss":
            return self.p_holm
        return None if self.reason else self.p_loss_holm


@dataclass(frozen=True)
class Speedup:
    ratio: float  # setting's throughput ÷ control's, of means
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
    throughput: Estimate | None  # of runs whose speed counts
    speedup: Speedup | None
    speed_note: str | None  # why there is no speed-up, in words
    peak_gib: Estimate | None
    time_to_train_s: Estimate | None
    skipped_steps: Estimate | None
    density: Estimate | None
    serve: Estimate | None
    underflow: Estimate | None = None  # share of the gradients that vanish, in the sampled steps
    shared: Estimate | None = None  # throughput where none counts: of completed, not emulated runs that others may have slowed down


@dataclass(frozen=True)
class Group:
    """All settings of one model and data set that have the same control."""

    model: str
    data: str
    control: str | None  # its setting, or None where the study has no such run
    rows: tuple[Row, ...]  # the control first, then by speed-up, fastest first
    train_verdict: str  # one sentence
    serve_verdict: str  # one sentence; empty where nothing was deployed
    notes: tuple[str, ...]  # what the reader must know: other batch sizes, other devices, emulated, shared devices
    metric: str = "test/accuracy"  # that this group is compared by; may differ between groups of a study
    changes: str = ""  # settings beyond the four choices that all rows share, as in Run.changes


@dataclass(frozen=True)
class Comparison:
    study: str
    metric: str  # test/accuracy, test/perplexity or "auto": of language models perplexity, of all else accuracy
    margin: float
    confidence: float
    groups: tuple[Group, ...]
    left_out: tuple[tuple[str, str], ...]  # (folder relative to the study, reason)
    folder: Path  # outputs/<study>
    commands: tuple[str, ...]  # that repeat the study
