"""An exponential moving average of the weights, used for validation and test. A skipped step does not advance it."""

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor


class Ema(Callback):
    """average ← decay · average + (1 - decay) · weight after every optimizer step that was taken.

    Checkpoints hold the training weights as the model's state and the averages beside them, under this callback's name.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.averages: dict[str, Tensor] = {}
        self._loaded: dict[str, Tensor] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        weights = dict(pl_module.model.named_parameters())
        self.averages = {name: self._loaded.get(name, p).detach().to(p, copy=True) for name, p in weights.items()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module, skipped: Tensor | None) -> None:
        """skipped: whether the newest step was left out, a bool on the device; None: it was not."""
        weights = list(model.parameters())
        averages = list(self.averages.values())
        share = 1 - self.decay if skipped is None else (~skipped) * (1 - self.decay)
        towards = torch._foreach_sub(weights, averages)
        torch._foreach_mul_(towards, share)
        torch._foreach_add_(averages, towards)

    def restart(self, trainer: pl.Trainer) -> None:
        """Begin again from the weights as they are: those before the pruning are not zero where the pruned ones are."""
        for name, p in trainer.lightning_module.model.named_parameters():
            self.averages[name].copy_(p.detach())

    @torch.no_grad()
    def _swap(self, pl_module: pl.LightningModule) -> None:
        for name, p in pl_module.model.named_parameters():
            average = self.averages[name] = self.averages[name].to(p.device)
            kept = p.detach().clone()
            p.copy_(average)
            average.copy_(kept)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._swap(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._swap(pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._swap(pl_module)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._swap(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict["averages"]
