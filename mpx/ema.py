"""An exponential moving average of the weights, used for validation and test. A skipped step does not advance it."""

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor


class Ema(Callback):
    """average ← decay · average + (1 - decay) · weight after every optimizer step that was taken.

    Averages are FP32 whatever the weights are: (1 - decay) of a difference would be nothing in 16 bits. Batch norm's statistics are not
    averaged. Checkpoints hold the training weights as the model's state and the averages beside them, under this callback's name.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.averages: dict[str, Tensor] = {}  # by parameter name
        self._loaded: dict[str, Tensor] = {}
        self._training: list[Tensor] = []  # the weights, while the averages are in their place

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, p in pl_module.model.named_parameters():
            self.averages[name] = self._loaded.get(name, p).detach().to(p.device, torch.float32, copy=True)

    @torch.no_grad()
    def update(self, model: torch.nn.Module, skipped: Tensor | None) -> None:
        """skipped: whether the newest step was left out, a bool on the device; None: it was not."""
        averages = list(self.averages.values())
        share = 1 - self.decay if skipped is None else (~skipped) * (1 - self.decay)
        towards = torch._foreach_sub([p.float() for p in model.parameters()], averages)
        torch._foreach_mul_(towards, share)
        torch._foreach_add_(averages, towards)

    def restart(self, trainer: pl.Trainer) -> None:
        """Begin again from the weights as they are: those before the pruning are not zero where the pruned ones are."""
        for name, p in trainer.lightning_module.model.named_parameters():
            self.averages[name].copy_(p.detach())

    @torch.no_grad()
    def _put_in(self, pl_module: pl.LightningModule) -> None:
        named = dict(pl_module.model.named_parameters())
        self._training = [p.detach().clone() for p in named.values()]
        for name, p in named.items():
            p.copy_(self.averages[name])

    @torch.no_grad()
    def _take_out(self, pl_module: pl.LightningModule) -> None:
        for p, weight in zip(pl_module.model.parameters(), self._training, strict=True):
            p.copy_(weight)
        self._training = []

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._put_in(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take_out(pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._put_in(pl_module)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take_out(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict["averages"]
