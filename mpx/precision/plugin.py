"""The Lightning precision plugin: autocast or emulation, loss scaling, and a count of skipped steps, on every device."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor, nn

from mpx.precision.emulate import Emulate
from mpx.precision.modes import Mode
from mpx.precision.rnn import BFloat16RNN, has_rnn


class ModePrecision(Precision):
    """One class for every mode and device, because Lightning files the scaler's state under the plugin's class name:
    a checkpoint written on a GPU would otherwise silently resume at the initial scale on a CPU."""

    precision = "32-true"

    def __init__(self, mode: Mode, device: torch.device, *, emulate: bool, loss_scale: dict[str, float] | None):
        self.mode, self.device, self.emulate = mode, device, emulate
        self.scaler = None
        if mode.scaled:
            settings = dict(loss_scale or {})
            self.scaler = torch.amp.GradScaler(device.type, init_scale=settings.pop("initial", 65536.0), **settings)
        self.lowest = self.highest = self.scaler.get_scale() if self.scaler else None
        self.initial = self.lowest
        self.bf16_rnn = False
        self.steps = 0  # optimizer steps asked for
        self.skipped = 0  # of those, left out because a gradient overflowed

    def convert_module(self, module: nn.Module) -> nn.Module:
        self.bf16_rnn = not self.emulate and self.mode.autocast == torch.bfloat16 and self.device.type == "cuda" and has_rnn(module)
        return module

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.emulate:
                stack.enter_context(Emulate(self.mode.matmul))
            elif self.mode.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=self.mode.autocast))
            if self.bf16_rnn:
                stack.enter_context(BFloat16RNN())
            yield

    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:
        return super().pre_backward(self.scaler.scale(tensor) if self.scaler else tensor, module)

    def backward(self, tensor: Tensor, model: pl.LightningModule, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        with Emulate(self.mode.matmul) if self.emulate else nullcontext():
            super().backward(tensor, model, optimizer, *args, **kwargs)

    def optimizer_step(self, optimizer: Any, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Forward, backward, unscale, clip, step. A step whose gradients overflowed is skipped and halves the scale."""
        self.steps += 1
        if self.scaler is None:
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        result = closure()
        if result is None and model.automatic_optimization:
            return result
        self.scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)
        before = self.scaler.get_scale()
        output = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        after = self.scaler.get_scale()
        self.skipped += after < before
        self.lowest, self.highest = min(self.lowest, after), max(self.highest, after)
        return output

    def record(self) -> dict[str, Any]:
        """The loss-scale part of result.json."""
        scale = None
        if self.scaler is not None:
            scale = {"initial": self.initial, "final": self.scaler.get_scale(), "min": self.lowest, "max": self.highest}
        return {"loss_scale": scale, "optimizer_steps": self.steps - self.skipped, "skipped_steps": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        state = {"steps": self.steps, "skipped": self.skipped}
        if self.scaler is not None:
            state |= {"scaler": self.scaler.state_dict(), "initial": self.initial, "lowest": self.lowest, "highest": self.highest}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.skipped = state["steps"], state["skipped"]
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
            self.initial, self.lowest, self.highest = state["initial"], state["lowest"], state["highest"]
