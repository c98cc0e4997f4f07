"""Scalars of a loop, to TensorBoard and curves.csv. Values on a GPU are read outside the timed windows, so that no step waits for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from mpx.errors import UserError
from mpx.record.files import CurveFile
from mpx.render import tensorboard
from mpx.runs.signals import held

MAX_WAITING = 1000  # values that wait; reading them then waits for the device once

Value = float | int | Tensor


def number(name: str, value: Any) -> Value:
    """The value as a float, or as a tensor that stays on its device. Raises UserError if it is not one number."""
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return value.detach()
        raise UserError(f"{name} is a tensor of shape {tuple(value.shape)}. Give one number, for example {name}=value.mean().")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name}={value!r} must be one number. For example {name}=0.5.") from None


class Scalars:
    """Writes into the run's folder. A signal waits meanwhile, as in mpx/training/logging.py."""

    def __init__(self, folder: Path, setting: Mapping[str, Any], trial: str, config: str, environment: Mapping[str, Any]):
        self.newest: dict[str, float] = {}
        self._waiting: list[tuple[str, int, Value]] = []
        with held():
            self.writer, self.curves = SummaryWriter(folder), CurveFile(folder, 0)
            tensorboard.write_first(self.writer, setting, trial, config, environment)

    def add(self, values: Mapping[str, Value], step: int) -> None:
        """values: of `number`. A tensor is copied on its device, since the next step may overwrite it."""
        self._waiting += [(tag, step, value.clone() if isinstance(value, Tensor) else value) for tag, value in values.items()]
        if len(self._waiting) >= MAX_WAITING:
            self.write()

    def write(self) -> None:
        """Waits for the device."""
        waiting, self._waiting = self._waiting, []
        read = [(tag, step, float(value)) for tag, step, value in waiting]
        with held():
            for tag, step, value in read:
                self.newest[tag] = value
                self.writer.add_scalar(tag, value, step)
                self.curves.append({tag: value}, step)

    def close(self, record: Mapping[str, Any], step: int) -> None:
        """record: the run's, whose final values go into TensorBoard's table."""
        with held():
            tensorboard.write_final(self.writer, record, step)
            self.writer.close()
            self.curves.close()
