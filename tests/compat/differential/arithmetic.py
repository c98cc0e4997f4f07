"""In which arithmetic a program runs: PyTorch's own FP16, or mpx's emulation of it, as on a CPU."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from mpx.compat.amp import casts, forward, handle
from mpx.precision.emulate import Emulate


@dataclass(frozen=True)
class Arithmetic:
    emulated: bool
    device: str = "cpu"

    def apply(self, monkeypatch) -> None:
        """A CPU has autocast too, so that mpx can be told to take it for a GPU."""
        for module in (casts, forward, handle):
            monkeypatch.setattr(module, "emulated", lambda device: self.emulated)

    def autocast(self) -> AbstractContextManager:
        return Emulate("fp16") if self.emulated else torch.autocast(self.device, dtype=torch.float16)

    def fp16_weights(self) -> AbstractContextManager:
        return Emulate("fp16", autocast=False) if self.emulated else nullcontext()
