"""Scalars of a loop, to TensorBoard and curves.csv. Values on a GPU are read outside the timed windows, so
that no step waits for them.
"""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from mpx.errors import UserError
from mpx.record.run import RunRecord
from mpx.render import tensorboard
from mpx.runs.files import CurveFile

MAX_WAITING = 1000  # values that wait; reading them then waits for the device once

Value = float | Tensor


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
    """Writes into the folder of `run`, which is open."""

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
        tensorboard.write_final(self._writer, record, step)
        self._writer.close()
        self._curves.close()
