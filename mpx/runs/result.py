"""result.json, the record that everything else reads. It is written whole or not at all, also when a run
fails.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from mpx.errors import UserError
from mpx.runs.folder import RESULT
from mpx.system.version import with_commit
from mpx.system.whole_file import write_whole

SCHEMA_VERSION = 1
EXIT = {"completed": 0, "diverged": 3, "failed": 1, "interrupted": 130}  # exit code of each status
STATUSES = tuple(EXIT)
# part of the environment of a run whose weights something has replaced after it: true
CHANGED_AFTER = "changed_after_validation"
# part of the environment of a run that was continued within its last epoch: the first step of train/…
MEANS_FROM = "train_means_from_step"
# part of the environment of a run that continues a checkpoint of another setting
TRAINED_BEFORE = "trained_before_with"
# part of the environment of a run that went on after its newest validation: [its step, the last step]
VALIDATED_AT = "validated_at_step"
NOT_BEGUN = "the run ended before training began"
EMULATED = "emulated: not the speed of this format"
# How `speed.measured` says that a speed is not simply the run's own.
BESIDE = "beside other jobs of the sweep"
ALONE = "alone, after the sweep, on seed {seed}"
SPEED = (
    "train_samples_per_s", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "model_tflops_per_s", "mfu",
    "time_to_train_s", "exclusive",
)  # fmt: skip
PRECISION = ("mode", "emulated", "formats", "observed", "loss_scale", "optimizer_steps", "skipped_steps")
SPARSITY = ("pattern", "backend", "recipe", "verified", "density", "pruned_share", "kept_magnitude")
# parts of an environment in which the hosts of compared speeds agree, where they are known
HOST = ("cpu", "driver", "torch")
UNKNOWN = {  # the record's parts of a run that did not get as far as training
    "metrics": {},
    "speed": dict.fromkeys(SPEED) | {"measured_steps": 0, "reason": NOT_BEGUN},
    "memory": dict.fromkeys(("peak_allocated_gib", "peak_reserved_gib", "peak_rss_gib"))
    | {"reason": NOT_BEGUN},
    "precision": dict.fromkeys(PRECISION) | {"reason": NOT_BEGUN},
    "sparsity": dict.fromkeys(SPARSITY) | {"layers": [], "reason": NOT_BEGUN},
}


def one_number(value: Any) -> Any:
    """1 for 1.0, also in a list: typed in either way it is the same setting."""
    if isinstance(value, list):
        return [one_number(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def write_result(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Write `record` as the folder's result.json, and return what was written. NaN and infinity become null,
    because JSON has neither.
    """
    assert record["status"] in STATUSES
    written = _finite({"schema_version": SCHEMA_VERSION} | record)
    write_whole(folder / RESULT, json.dumps(written, indent=2, allow_nan=False) + "\n")
    return written


def place_of(environment: dict[str, Any]) -> list[Any]:
    """The machine, PyTorch and mpx that a speed was measured with. environment: of result.json. Of several
    GPUs, the first counts.
    """
    found = [environment.get(name) for name in ("device", *HOST, "mpx")]
    return [part[0] if isinstance(part, list) else part for part in found]


def mpx_of(environment: dict[str, Any]) -> str | None:
    """The version of mpx. Only in older records it does not tell the source files; there the commit stands
    beside it.
    """
    if (version := environment.get("mpx")) is None:
        return None
    return str(version) if "+" in str(version) else with_commit(str(version), environment)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note_validation(record: dict[str, Any], step: int | None, last: int, *, changed: bool = False) -> None:
    """Say in a record's environment if the newest validation was before the last step, or of other weights
    than those at the end.

    step: its step; None: unknown, or there was none. changed: whether something other than a step has changed
    the weights since. A pruning forgets what was validated before it.
    """
    environment = record["environment"]
    for name in (VALIDATED_AT, CHANGED_AFTER):  # of an earlier part of the run
        environment.pop(name, None)
    if step is None or not any(stage_of(name) == "val" for name in record["metrics"]):
        return
    if step < last:
        environment[VALIDATED_AT] = [step, last]
    elif changed:
        environment[CHANGED_AFTER] = True


def words_of_validation(environment: dict[str, Any]) -> str:
    """` (val/… is of step 12 of 14)`; empty where it is of the last."""
    return (
        " (val/… is of step {} of {})".format(*environment[VALIDATED_AT])
        if VALIDATED_AT in environment
        else ""
    )


def metric_name(name: str) -> str:
    """A metric's name in the record, where a slash tells the stage from the value: `val_dice` and `val dice`
    are `val/dice`.
    """
    name = re.sub(r"\s", "_", name)
    if "/" in name:
        return name
    stage, _, rest = name.partition("_")
    return (
        f"{stage}/{rest}"
        if rest and stage in ("train", "val", "valid", "validation", "test")
        else f"own/{name}"
    )


def stage_of(metric: str) -> str:
    """train, val or test: where a metric is logged, such as test_loss, test/loss, and of several loaders
    test_loss/dataloader_idx_0.
    """
    return next((stage for stage in ("train", "test") if metric.startswith(stage)), "val")


def line_of(error: BaseException) -> str:
    """An error in one line of result.json."""
    words = " ".join(str(error).split())[:300]
    return words if isinstance(error, UserError) else f"{type(error).__name__}: {words}".rstrip(": ")
