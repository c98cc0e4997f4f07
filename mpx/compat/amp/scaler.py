"""A loss scale with apex's names, based on mpx's device-side LossScale.

Source of the names: NVIDIA apex 25.05, apex/amp/scaler.py.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from mpx.precision.scaling import LossScale


def _attribute_of_scale(name: str) -> property:
    return property(lambda self: getattr(self.scale, name), lambda self, value: setattr(self.scale, name, value))


class LossScaler:
    """A loss scale as scripts for apex use it: `amp._amp_state.loss_scalers[0].loss_scale()`.

    loss_scale: "dynamic" starts at 2^16 (within the limits), doubles after 2000 clean passes in a row and halves after an overflow. A
    number stays fixed, and overflows are not checked. device: that of the gradients, so that the scale never waits for the device.

    Properties read and write the device's values under the names that apex uses for plain numbers. Setting a name that apex does not have
    raises AttributeError.
    """

    __slots__ = ("_buffer", "_found", "scale")

    def __init__(self, loss_scale: str | float, device: torch.device, min_loss_scale: float | None, max_loss_scale: float | None):
        dynamic = loss_scale == "dynamic"
        floor, ceiling = min_loss_scale or 0.0, max_loss_scale or math.inf
        initial = max(floor, min(2.0**16, ceiling)) if dynamic else float(loss_scale)
        self.scale = LossScale(device, initial=initial, floor=floor, ceiling=ceiling, dynamic=dynamic)
        self._found = torch.zeros_like(self.scale.found_inf)  # the overflow flag of the last update_scale
        self._buffer: Tensor | None = None

    def loss_scale(self) -> float:
        return self.scale.scale.item()

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self.scale.scale.fill_(value)

    dynamic = _attribute_of_scale("dynamic")
    _scale_seq_len = _attribute_of_scale("growth_interval")  # clean passes after which the scale doubles

    @property
    def _unskipped(self) -> int:
        """Clean passes since the scale last changed."""
        return int(self.scale.clean)

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self.scale.clean.fill_(value)

    @property
    def _min_loss_scale(self) -> float | None:
        return self.scale.floor or None

    @_min_loss_scale.setter
    def _min_loss_scale(self, value: float | None) -> None:
        self.scale.floor = value or 0.0

    @property
    def _max_loss_scale(self) -> float | None:
        return None if math.isinf(self.scale.ceiling) else self.scale.ceiling

    @_max_loss_scale.setter
    def _max_loss_scale(self, value: float | None) -> None:
        self.scale.ceiling = value or math.inf

    @property
    def _has_overflow(self) -> bool:
        """Whether the last pass overflowed, known even before update_scale. Scripts set it to control update_scale."""
        return self.dynamic and bool(torch.maximum(self._noted(), self._found))

    @_has_overflow.setter
    def _has_overflow(self, value: bool) -> None:
        self.clear_overflow_state()
        self.scale.found_inf.fill_(float(value))

    @property
    def _overflow_buf(self) -> Tensor:
        """(1,) int32 on the gradients' device: 1 after an overflow. Scripts sum it over processes, or replace it by their own tensor."""
        if self._buffer is None:
            self._buffer = torch.zeros(1, dtype=torch.int32, device=self.scale.scale.device)
        return self._buffer.copy_(self._noted())

    @_overflow_buf.setter
    def _overflow_buf(self, value: Tensor) -> None:
        self._buffer = value

    def _noted(self) -> Tensor:
        """0 or 1: the overflows of unscale_ since the last update_scale, or the value that a script wrote into _overflow_buf."""
        if self._buffer is not None:
            found = self.scale.found_inf
            found.copy_(torch.maximum(found, (self._buffer != 0).any().to(found)))
        return self.scale.found_inf

    def clear_overflow_state(self) -> None:
        self.scale.found_inf.zero_()
        self._found = torch.zeros_like(self.scale.found_inf)
        if self._buffer is not None:
            self._buffer.zero_()

    def scaled(self, loss: Tensor) -> Tensor:
        """loss × scale in FP32."""
        return self.scale.scale_loss(loss.float())

    def unscale_(self, gradients: Iterable[Tensor]) -> None:
        self.scale.unscale_(gradients)

    def end_pass(self) -> Tensor:
        """Adjust the scale to the overflows since the last pass. Returns the overflow flag (0 or 1, on the device)."""
        found = self._noted()
        self._found = found.clone() if self.dynamic else torch.zeros_like(found)
        self.scale.update()
        if not self.dynamic:
            self.scale.clean += 1  # apex counts clean passes for a fixed scale too
        if self._buffer is not None:
            self._buffer.zero_()
        return self._found

    def update_scale(self) -> bool:
        """Adjust the scale and return whether to skip the step, for scripts that pass delay_overflow_check=True."""
        return bool(self.end_pass())

    def state_dict(self) -> dict[str, float | int]:
        return {"loss_scale": self.loss_scale(), "unskipped": self._unskipped}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore scale and count. A fixed scale's count may exceed 2000, after which a dynamic scale would never grow, so it is capped."""
        self._loss_scale = state["loss_scale"]
        self._unskipped = min(state["unskipped"], self._scale_seq_len - 1) if self.dynamic else state["unskipped"]
