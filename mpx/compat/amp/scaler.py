"""One loss's scale under apex's names, on mpx's device-side LossScale."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mpx.precision.scaling import LossScale


class LossScaler:
    """A loss scale as scripts for apex reach it: `amp._amp_state.loss_scalers[0].loss_scale()`.

    loss_scale: "dynamic" starts at 2^16 (inside the limits), doubles after 2000 clean passes in a row and halves after an overflow;
    a number is kept, and overflows are then not looked for. device: where gradients are, so that nothing waits for them to be read.
    """

    def __init__(self, loss_scale: str | float, device: torch.device, min_loss_scale: float | None, max_loss_scale: float | None):
        self.dynamic = loss_scale == "dynamic"
        floor, ceiling = min_loss_scale or 0.0, max_loss_scale or float("inf")
        initial = max(floor, min(2.0**16, ceiling)) if self.dynamic else float(loss_scale)
        self.scale = LossScale(device, initial=initial, floor=floor, ceiling=ceiling, dynamic=self.dynamic)

    def loss_scale(self) -> float:
        return self.scale.scale.item()

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self.scale.scale.fill_(value)

    @property
    def _unskipped(self) -> int:
        return int(self.scale.clean)

    def scaled(self, loss: Tensor) -> Tensor:
        return self.scale.scale_loss(loss.float())

    def unscale_(self, gradients: Iterable[Tensor]) -> None:
        self.scale.unscale_(gradients)

    def end_pass(self) -> Tensor:
        """Adjust the scale to what unscale_ saw since the last pass; returns the flag (0 or 1, on the device) of an overflow."""
        overflowed = self.scale.found_inf.clone() if self.dynamic else torch.zeros_like(self.scale.found_inf)
        self.scale.update()
        if not self.dynamic:
            self.scale.clean += 1  # apex counts here too
        return overflowed

    def update_scale(self) -> bool:
        """For scripts that pass delay_overflow_check=True: adjust the scale; returns whether the step is to be skipped."""
        return bool(self.end_pass())

    def state_dict(self) -> dict[str, float | int]:
        return {"loss_scale": self.loss_scale(), "unskipped": self._unskipped}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """A fixed scale's count may be beyond 2000, where a dynamic scale that compares for equality would never grow again."""
        unskipped = min(state["unskipped"], self.scale.growth_interval - 1) if self.dynamic else state["unskipped"]
        self.scale.load_state_dict({"scale": state["loss_scale"], "_growth_tracker": unskipped})
