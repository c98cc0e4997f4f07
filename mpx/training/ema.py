"""An exponential moving average of the weights, for validation and test. A skipped step does not advance
it.
"""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from mpx.private.torch_modules import NORM_WITH_STATISTICS
from mpx.sparsity.masks import Masks


class Ema(Callback):
    """After every optimizer step that was taken: average ← decay · average + (1 - decay) · weight.

    After t steps the decay is at most (1 + t) / (10 + t), as with num_updates in TensorFlow's
    ExponentialMovingAverage. Otherwise an average with decay 0.999 would still be mostly the first, random
    weights after hundreds of steps.

    Averages are FP32 whatever the format of the weights, because (1 - decay) of a difference is rounded away
    in 16 bits. The statistics of batch norms are averaged too, as by timm's ModelEmaV2 and torch's
    AveragedModel(use_buffers=True), because those of the newest weights do not fit the average. A checkpoint
    holds the training weights as the model's state and the averages under this callback's name.

    masks: of a model that is pruned; None: it stays dense. Where recipes change the masks, an average may be
    non-zero at a position that is pruned now. A validation masks a copy and leaves the average as it is, so
    that the number of validations changes nothing.
    """

    def __init__(self, decay: float, model: nn.Module, masks: Masks | None = None):
        self.decay, self.model, self.masks = decay, model, masks
        self.averages: dict[str, Tensor] = {}  # by the name of the parameter or buffer
        # averaged so far; a tensor on the device, so that a replayed step counts itself
        self.steps = torch.zeros(())
        self._loaded: dict[str, Tensor] = {}
        # the trained weights and statistics while the averages are in their place
        self._training: list[Tensor] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, value in _averaged(self.model):
            average = self._loaded[name] if self._loaded else value.detach()
            self.averages[name] = torch.empty_like(value, dtype=torch.float32, requires_grad=False).copy_(
                average
            )
        self.steps = self.steps.to(next(iter(self.averages.values())).device)

    @torch.no_grad()
    def update(self, skipped: Tensor | None) -> None:
        """Average the newest weights. skipped: a bool on the device, whether the step was skipped; None: it
        was not.
        """
        averages = list(self.averages.values())
        share = (9 / (10 + self.steps)).clamp(min=1 - self.decay)  # 1 minus an FP32 decay has few digits left
        self.steps.add_(1 if skipped is None else ~skipped)
        share = share if skipped is None else share * ~skipped
        towards = torch._foreach_sub([value.float() for _, value in _averaged(self.model)], averages)
        torch._foreach_mul_(towards, share)
        torch._foreach_add_(averages, towards)

    def restart(self, trainer: pl.Trainer) -> None:
        """Start again from the present weights: averages from before the pruning are not zero where the
        weights now are.
        """
        for name, value in _averaged(self.model):
            self.averages[name].copy_(value.detach())
        self.steps.zero_()

    @torch.no_grad()
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the averages in the place of the trained weights."""
        named = dict(_averaged(self.model))
        self._training = [value.detach().clone() for value in named.values()]
        for name, value in named.items():
            value.copy_(self.averages[name])
        if self.masks is not None:
            self.masks.mask_averages(named)

    @torch.no_grad()
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for (_, value), trained in zip(_averaged(self.model), self._training, strict=True):
            value.copy_(trained)
        self._training = []

    on_test_start, on_test_end = on_validation_start, on_validation_end

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded, self.steps = state_dict["averages"], state_dict["steps"]


def _averaged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then running means and variances, by their names in the model."""
    yield from model.named_parameters()
    for name, module in model.named_modules():
        if isinstance(module, NORM_WITH_STATISTICS) and module.track_running_stats:
            for key in ("running_mean", "running_var"):
                yield f"{name}.{key}" if name else key, getattr(module, key)
