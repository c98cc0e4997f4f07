"""The loss of training and evaluation."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def loss_of(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy in FP32. logits: [B, C] or [B, T, V]; y: [B] or [B, T]."""
    return cross_entropy(logits.flatten(0, -2).float(), y.flatten(), label_smoothing=label_smoothing)


class TrainingLoss:
    """The loss of a batch: forward pass and cross-entropy in one function, which torch.compile takes as a whole.

    label_smoothing: share of each target that is spread evenly over the classes (arXiv:1512.00567).
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0):
        self.model, self.label_smoothing = model, label_smoothing

    def of_batch(self, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(self.model(x), y, self.label_smoothing)


def loss_in(outputs: Any) -> Tensor | None:
    """The loss in what a training step returned; None where a manual optimization returns none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss if isinstance(loss, Tensor) else None
