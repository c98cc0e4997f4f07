"""The loss of training and evaluation."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpx.spec import NO_LABEL
from mpx.training.tasks import LOSSES


def loss_of(logits: Tensor, y: Tensor, label_smoothing: float = 0.0, task: str = "classification") -> Tensor:
    """The task's loss in FP32, the mean over targets: cross-entropy, or what LOSSES has. logits, y: as in Spec."""
    if task in LOSSES:
        return LOSSES[task](logits.float(), y)
    logits, y = logits.flatten(0, -2).float(), y.flatten()
    if task == "tokens":  # the mean over no label is NaN, and a small batch may have none
        return cross_entropy(logits, y, reduction="sum", label_smoothing=label_smoothing) / (y != NO_LABEL).sum().clamp(min=1)
    return cross_entropy(logits, y, label_smoothing=label_smoothing)


class TrainingLoss:
    """The loss of a batch: forward pass and the task's loss in one function, which torch.compile takes as a whole.

    label_smoothing: share of each target that is spread evenly over the classes (arXiv:1512.00567).
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0, task: str = "classification"):
        self.model, self.label_smoothing, self.task = model, label_smoothing, task

    def of_batch(self, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(self.model(x), y, self.label_smoothing, self.task)


def loss_in(outputs: Any) -> Tensor | None:
    """The loss in what a training step returned, which Lightning has divided by trainer.accumulate_grad_batches; None where a manual
    optimization returns none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss if isinstance(loss, Tensor) else None
