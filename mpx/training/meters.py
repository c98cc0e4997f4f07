"""Loss and accuracy of an evaluation, and for language models perplexity: one code for a training's test and for a served model."""

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from mpx.training.loss import loss_of


class Meters(nn.ModuleDict):
    """Means in float64 on the device. Without nan_strategy="disable" every update would wait for the device."""

    def __init__(self):
        super().__init__({name: MeanMetric(nan_strategy="disable").set_dtype(torch.float64) for name in ("loss", "accuracy")})

    def add(self, logits: Tensor, y: Tensor) -> None:
        """One batch. logits: [B, C] or [B, T, V]; y: [B] or [B, T]."""
        self["loss"].update(loss_of(logits, y).expand(y.numel()))  # torchmetrics 1.9 ignores weights with nan_strategy="disable"
        self["accuracy"].update((logits.argmax(-1) == y).double())

    def take(self, kind: str) -> dict[str, Tensor]:
        """The metrics of the batches since the last call. kind: that of the data's Spec."""
        values = {name: meter.compute() for name, meter in self.items()}
        for meter in self.values():
            meter.reset()
        return values | ({"perplexity": values["loss"].exp()} if kind == "lm" else {})
