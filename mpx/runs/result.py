"""What a run leaves in its folder for everything else to read, and the metric that it is judged by.

result.json is the record. It is written whole or not at all, also when a run fails. curves.csv has the
scalars that a comparison draws, so that it need not read TensorBoard's events. predictions.json says which
samples of the test set a run has right, so that settings can be paired over samples. The order of a test set
is fixed, and `test_set`, the checksum of its samples, labels and order, ties that file to the set and to
result.json.
"""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from mpx.errors import UserError, nearest
from mpx.runs.folder import RESULT
from mpx.system.version import with_commit
from mpx.system.whole_file import write_whole

SCHEMA_VERSION = 1
EXIT = {"completed": 0, "diverged": 3, "failed": 1, "interrupted": 130}  # exit code of each status
STATUSES = tuple(EXIT)
NOT_BEGUN = "the run ended before training began"
EMULATED = "emulated: not the speed of this format"
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

CURVES = "curves.csv"
# What is drawn: these, and all that a run logs in validation or, as a project, without a stage.
TAGS = ("train/loss", "numerics/loss_scale", "numerics/gradient_underflow_fraction")
STAGES = ("val/", "valid/", "validation/", "own/")
HEADER = "tag,step,value\n"
# tag, step, value
ROW = re.compile(r"([^,\x00-\x1f]+),(\d{1,18}),(-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)|nan)", re.ASCII)
PREDICTIONS = "predictions.json"
LAYOUT = 1  # version of the file


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


def mpx_of(environment: dict[str, Any]) -> str | None:
    """The version of mpx, which names its source files by a hash. Versions in older records do not; the
    commit stands beside those.
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


def not_logged(metric: str, trainer: Any, key: str = "metric") -> UserError:
    """The error for a metric that a module has not logged. trainer: Lightning's. key: the setting that names
    it.
    """
    if metric in trainer.logged_metrics:
        return UserError(
            f"{key}={metric}: the module logs it for single steps alone. Log it with on_epoch=True, or name "
            "another."
        )
    names = trainer.callback_metrics
    words = ", ".join(sorted(names)) or "nothing"
    return UserError(
        f"{key}={metric}: the module logs no such value.{nearest(metric, names)} It logs {words}. Name one "
        "of them."
    )


def stage_of(metric: str) -> str:
    """train, val or test: where a metric is logged, such as test_loss, test/loss, and of several loaders
    test_loss/dataloader_idx_0.
    """
    return next((stage for stage in ("train", "test") if metric.startswith(stage)), "val")


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
    "test/perplexity": Metric("test/perplexity", "test perplexity", -1, relative=True),
}
GOALS = {"max": 1, "min": -1}


def metric_of(name: str, goal: str) -> Metric:
    """The metric that a record declares as `"metric": {"name": …, "goal": "max" | "min"}`.

    A metric that should rise is taken for a share, such as an accuracy, and its margin has its unit. A metric
    that should fall may have any scale, such as a perplexity, and its margin is a share of the control's
    value.
    """
    return METRICS.get(name) or Metric(name, name.replace("/", " "), GOALS[goal], relative=goal == "min")


def to_print(metric: Metric, values: Iterable[float | None]) -> Metric:
    """The metric with the decimals that give a typical value four significant digits."""
    typical = median([abs(value) for value in values if value] or [1.0])
    return replace(metric, spec=f".{max(0, 4 - math.ceil(math.log10(typical)))}f")


def judged_by(metrics: Mapping[str, Any], name: str | None = None, goal: str | None = None) -> Metric:
    """The metric by which a run with `metrics` is judged: the one of this name and goal, if its record
    declares one; else the perplexity or the accuracy. A language model has both.
    """
    if name is not None and goal is not None:
        return to_print(metric_of(name, goal), [metrics.get(name)])
    usual = METRICS["test/perplexity" if "test/perplexity" in metrics else "test/accuracy"]
    return to_print(usual, [metrics.get(usual.name)])


def judged_by_record(record: Mapping[str, Any]) -> Metric:
    """`judged_by` for a run's record, or the parts of it that a sweep keeps."""
    return judged_by(record["metrics"], **(record.get("metric") or {}))


def line_of(error: BaseException) -> str:
    """An error in one line of result.json."""
    words = " ".join(str(error).split())[:300]
    return words if isinstance(error, UserError) else f"{type(error).__name__}: {words}".rstrip(": ")


class CurveFile:
    """Appends a row `tag,step,value` for every value that is drawn, by its name in the record. A resumed run
    first removes the rows that it will write again.

    first_step: the first step that this part of the run may write; 0 for a new run.
    """

    def __init__(self, folder: Path, first_step: int):
        path = folder / CURVES
        found = map(ROW.fullmatch, rows(path)) if first_step and path.is_file() else ()
        # a damaged row becomes a gap in the curve
        kept = [row[0] for row in found if row is not None and int(row[2]) < first_step]
        write_whole(path, HEADER + "".join(f"{row}\n" for row in kept))
        # line by line, so that a killed run leaves whole lines
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def append(self, values: Mapping[str, float], step: int) -> None:
        named = {metric_name(tag): float(value) for tag, value in values.items()}
        self._file.writelines(
            f"{name},{step},{value!r}\n"
            for name, value in named.items()
            if name in TAGS or name.startswith(STAGES)
        )

    def close(self) -> None:
        self._file.close()


def rows(path: Path) -> list[str]:
    """The rows `tag,step,value` of a curves.csv, without the header and without an incomplete last line."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[1:-1]


@dataclass(frozen=True)
class Predictions:
    test_set: str
    samples: int
    # one per sample, from the highest bit of the first byte on: 1 if the run has the sample right; 0 after
    # the last
    bits: bytes

    @property
    def accuracy(self) -> float:
        return int.from_bytes(self.bits).bit_count() / self.samples

    @property
    def text(self) -> str:
        return base64.b64encode(self.bits).decode()


def write_predictions(folder: Path, predictions: Predictions) -> None:
    content = {
        "layout": LAYOUT,
        "test_set": predictions.test_set,
        "samples": predictions.samples,
        "right": predictions.text,
    }
    write_whole(folder / PREDICTIONS, json.dumps(content, indent=2) + "\n")


def predictions_from(test_set: str, samples: int, text: str) -> Predictions:
    """Raises ValueError for another number of samples than the text has. text: as `Predictions.text`."""
    bits, length = base64.b64decode(text, validate=True), -(-samples // 8)
    if len(bits) != length:
        raise ValueError(f"right has {len(bits)} bytes, {samples} samples take {length}")
    return Predictions(test_set, samples, bits)
