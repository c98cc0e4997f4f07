"""A run whose loop is not mpx's, on disk: outputs/<study>/<setting>/seed<N>/ with result.json, curves.csv and
TensorBoard's events.
"""

import copy
import math
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from mpx.errors import Diverged, UserError
from mpx.render import tensorboard
from mpx.runs import signals
from mpx.runs.folder import OWN_LOOP, Folder, claim
from mpx.runs.name import setting_name
from mpx.runs.result import (
    UNKNOWN,
    CurveFile,
    line_of,
    metric_name,
    write_result,
)
from mpx.settings.fields import NAMED
from mpx.system.processes import not_finite

MAX_WAITING = 1000  # values that wait; reading them then waits for the device once

Value = float | Tensor


class RunRecord:
    """One run: `open` its folder, add `metrics`, fill in the parts of `record` (result.json's),
    `write` it, `close`.

    setting: model, data, precision, sparsity, seed, and whatever else changes the result, which then is part
    of the folder's name. metric, goal: the value by which runs are compared, and whether it should rise (max)
    or fall (min). label: a name for tables. metrics: their values so far, which may change.
    if_exists: what to do if the run's folder exists: new (seed0-2 beside it), overwrite or error.
    """

    def __init__(
        self, study: str, setting: Mapping[str, Any], *, output_dir: str | Path, if_exists: str,
        metric: str | None, goal: str,
        label: str | None = None, metrics: dict[str, float] | None = None,
    ):  # fmt: skip
        self.comparable = {key: value for key, value in setting.items() if key != "seed"}
        self.trial = setting_name(
            dict(setting), {key: value for key, value in self.comparable.items() if key not in NAMED}
        )
        self.setting_dir, self.seed, self.if_exists = (
            Path(output_dir) / study / self.trial,
            setting["seed"],
            if_exists,
        )
        self.folder: Folder | None = None
        self.metrics = {} if metrics is None else metrics
        config = {"loop": OWN_LOOP, "study": study, "data": {"batch_size": None}, "trainer": {}}
        self.record: dict[str, Any] = {"status": "failed", "setting": dict(setting), "config": config}
        self.record |= {"metric": None if metric is None else {"name": metric_name(metric), "goal": goal}}
        self.record |= ({"label": label} if label is not None else {}) | copy.deepcopy(UNKNOWN)
        self.record["metrics"] = self.metrics

    @property
    def config(self) -> str:
        """The text of config.yaml."""
        parts = {"comparable": self.comparable, "trial": self.trial, "config": self.record["config"]}
        return yaml.safe_dump(parts, sort_keys=False)

    @property
    def path(self) -> Path:
        if self.folder is None:
            raise UserError("only the process of rank 0 has the run's folder.")
        return self.folder.path

    def open(self, environment: Mapping[str, Any], *, ckpt_path: str | None = None, steps: int = 0) -> None:
        """Training begins: find or make the folder, lock it, and write config.yaml.

        environment: of mpx.measure.environment. ckpt_path: that the training continues, after so many steps.
        Raises UserError where the folder is not writable, in use, or exists with if_exists="error".
        """
        self.folder = claim(
            self.setting_dir, self.seed, self.if_exists, self.comparable, in_sweep=False, ckpt_path=ckpt_path
        )
        self.folder.begin(self.config)
        self.record["environment"] = dict(environment) | {
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "resumed_from_steps": [steps] if steps else [],
        }

    def judge(
        self, error: BaseException | None, model: nn.Module | None, trouble: str | None = None
    ) -> tuple[str, str | None]:
        """The status of a run that ends with `error`, and one line about what is wrong. trouble: why it has
        diverged, if that is known.

        A loop may raise its own error about a loss that is NaN: left out as failed, the setting would be
        judged by its other seeds.
        """
        if error is not None and signals.ends(error):
            return "interrupted", line_of(error)
        # after an error of the device, no weight can be read
        with nullcontext() if error is None else suppress(Exception):
            trouble = trouble or self._not_finite(model)
        if error is None:
            return ("completed", None) if trouble is None else ("diverged", trouble)
        return "failed" if trouble is None and not isinstance(error, Diverged) else "diverged", line_of(error)

    def _not_finite(self, model: nn.Module | None) -> str | None:
        """One line about a metric or a weight that is not finite: an accuracy stays finite when all weights
        are NaN.
        """
        if bad := [name for name, value in self.metrics.items() if not math.isfinite(value)]:
            return f"{bad[0]} is infinite or NaN"
        weight = None if model is None else not_finite(model)
        return None if weight is None else f"the weights of {weight} are infinite or NaN"

    def write(self, status: str, error: str | None) -> None:
        """error: one line."""
        self.record |= {"status": status, "metrics": self.metrics}
        self.record.pop("error", None)
        self.record |= {"error": error} if error is not None else {}
        self.record = write_result(self.path, self.record)

    def say_status(self) -> None:
        why = f" ({self.record['error']})" if "error" in self.record else ""
        print(f"{self.record['status']}{why}, recorded in {self.path}")

    def close(self) -> None:
        if self.folder is not None:
            self.folder.release()


def number(name: str, value: Any) -> Value:
    """The value as a float, or as a tensor that stays on its device. Raises UserError if it is not one
    number.
    """
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return value.detach()
        raise UserError(
            f"{name} is a tensor of shape {tuple(value.shape)}. Give one number, for example "
            f"{name}=value.mean()."
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name}={value!r} must be one number. For example {name}=0.5.") from None


class Scalars:
    """Writes the scalars of a loop to TensorBoard and curves.csv, in the folder of `run`, which is open.

    Values on a GPU are read outside the timed windows, so that no step waits for them.
    """

    def __init__(self, run: RunRecord):
        self.newest: dict[str, float] = {}
        self._waiting: list[tuple[str, int, Value]] = []
        self._writer, self._curves = SummaryWriter(run.path), CurveFile(run.path, 0)
        tensorboard.write_first(
            self._writer, run.record["setting"], run.trial, run.config, run.record["environment"]
        )

    def add(self, values: Mapping[str, Value], step: int) -> None:
        """A tensor is copied on its device, since the next step may overwrite it."""
        self._waiting += [
            (tag, step, value.clone() if isinstance(value, Tensor) else value)
            for tag, value in values.items()
        ]
        if len(self._waiting) >= MAX_WAITING:
            self.write()

    def write(self) -> None:
        """Waits for the device."""
        waiting, self._waiting = self._waiting, []
        for tag, step, value in waiting:
            self.newest[tag] = float(value)
            self._writer.add_scalar(tag, self.newest[tag], step)
            self._curves.append({tag: self.newest[tag]}, step)

    def close(self, record: Mapping[str, Any], step: int, *, lost: bool) -> None:
        """record: the run's, whose final values go into TensorBoard's table. lost: after an error, the device
        may give no more values.
        """
        with suppress(Exception) if lost else nullcontext():
            self.write()
        tensorboard.write_final(self._writer, record, step, self.newest)
        self._writer.close()
        self._curves.close()
