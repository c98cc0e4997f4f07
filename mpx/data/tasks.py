"""What a data set's task is judged by: its loss, torchmetrics' metrics, the metric of a verdict with its
direction. One code for a training's test and for a served model.

| task           | loss                     | metrics                        | a verdict and best.ckpt go by |
|----------------|--------------------------|--------------------------------|-------------------------------|
| classification | cross-entropy            | accuracy, for lm perplexity    | accuracy, for lm perplexity   |
| regression     | mean squared error       | mse, mae                       | mse, which must fall          |
| multilabel     | binary cross-entropy     | map (mean average precision), f1 | map                         |
| tokens         | cross-entropy            | f1 (of each class, their mean), accuracy | f1                  |
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torchmetrics import MeanAbsoluteError, MeanMetric, MeanSquaredError, Metric
from torchmetrics.classification import MulticlassF1Score, MultilabelAveragePrecision, MultilabelF1Score

from mpx.data.spec import NO_LABEL, Spec

LOSSES: dict[str, Callable[..., Tensor]] = {  # of float logits and targets of one shape
    "regression": mse_loss, "multilabel": binary_cross_entropy_with_logits,
}  # fmt: skip
JUDGED = {
    "classification": ("accuracy", "max"),
    "regression": ("mse", "min"),
    "multilabel": ("map", "max"),
    "tokens": ("f1", "max"),
}


def primary_metric(spec: Spec) -> tuple[str, str]:
    """The metric by which runs on such data are compared, and whether it should be high (max) or low
    (min).
    """
    return ("perplexity", "min") if spec.kind == "lm" else JUDGED[spec.task]


def monitored(spec: Spec) -> tuple[str, str]:
    """The metric that best.ckpt goes by. A language model's loss tells more than its perplexity, which can
    overflow.
    """
    name, goal = primary_metric(spec)
    return ("val/loss" if spec.kind == "lm" else f"val/{name}", goal)


def meters_of(task: str, classes: int) -> dict[str, Metric]:
    """The metrics of a task beside loss and accuracy. Their arguments are not checked, since that waits for
    the device.

    The errors are summed in float64: after many batches, a sum in FP32 rounds away a part of each further
    one.
    """
    if task == "regression":
        return {
            "mse": MeanSquaredError().set_dtype(torch.float64),
            "mae": MeanAbsoluteError().set_dtype(torch.float64),
        }
    if task == "multilabel":
        return {
            "map": MultilabelAveragePrecision(classes, validate_args=False),
            "f1": MultilabelF1Score(classes, validate_args=False),
        }
    if task == "tokens":
        return {"f1": MulticlassF1Score(classes, validate_args=False)}
    return {}


def update(meter: Metric, task: str, logits: Tensor, y: Tensor) -> None:
    """One batch. logits, y: as in Spec; for tokens those with a label, [N, classes] and [N]."""
    if task == "regression":
        meter.update(logits.float(), y)
    elif task == "multilabel":
        # in FP32, all logits above 17 become 1 and lose their order
        meter.update(logits.double().sigmoid(), y.long())
    else:
        meter.update(logits.argmax(-1), y)


def loss_of(logits: Tensor, y: Tensor, label_smoothing: float = 0.0, task: str = "classification") -> Tensor:
    """The task's loss in FP32, the mean over targets: cross-entropy, or what LOSSES has. logits, y: as in
    Spec.
    """
    if task in LOSSES:
        return LOSSES[task](logits.float(), y)
    logits, y = logits.flatten(0, -2).float(), y.flatten()
    if task == "tokens":  # the mean over no label is NaN, and a small batch may have none
        return cross_entropy(logits, y, reduction="sum", label_smoothing=label_smoothing) / (
            y != NO_LABEL
        ).sum().clamp(min=1)
    return cross_entropy(logits, y, label_smoothing=label_smoothing)


class TrainingLoss:
    """The loss of a batch: forward pass and the task's loss in one function, which torch.compile takes as a
    whole.

    label_smoothing: share of each target that is spread evenly over the classes (arXiv:1512.00567).
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0, task: str = "classification"):
        self.model, self.label_smoothing, self.task = model, label_smoothing, task

    def of_batch(self, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(self.model(x), y, self.label_smoothing, self.task)


def loss_in(outputs: Any) -> Tensor | None:
    """The loss in what a training step returned, which Lightning has divided by
    trainer.accumulate_grad_batches; None where a manual optimization returns none.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss if isinstance(loss, Tensor) else None


def judged(logits: Tensor, y: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """The logits and targets that count: of tokens only those with a label, as [N, classes] and [N]. logits,
    y: as in Spec.
    """
    return (logits[y != NO_LABEL], y[y != NO_LABEL]) if task == "tokens" else (logits, y)


class Meters(nn.ModuleDict):
    """Means in float64 on the device, and the metrics of the task. Without nan_strategy="disable" every
    update would wait for the device.

    task, classes: of the data's Spec.
    """

    def __init__(self, task: str = "classification", classes: int = 0):
        means = ("loss",) if task in LOSSES else ("loss", "accuracy")
        own = meters_of(task, classes)
        made = {name: MeanMetric(nan_strategy="disable").set_dtype(torch.float64) for name in means}
        meters: dict[str, Metric] = {**made, **own}
        super().__init__(meters)
        self.task, self.own, self.meters = task, tuple(own), meters

    def add(self, logits: Tensor, y: Tensor) -> None:
        """One batch. logits, y: as in Spec."""
        logits, y = judged(logits, y, self.task)
        if y.numel() == 0:
            return
        # torchmetrics 1.9 ignores weights with nan_strategy="disable"
        self.meters["loss"].update(loss_of(logits, y, task=self.task).expand(y.numel()))
        if "accuracy" in self.meters:
            self.meters["accuracy"].update((logits.argmax(-1) == y).double())
        for name in self.own:
            update(self.meters[name], self.task, logits, y)

    def take(self, kind: str) -> dict[str, Tensor]:
        """The metrics of the batches since the last call. kind: that of the data's Spec."""
        values = {name: meter.compute() for name, meter in self.meters.items()}
        for meter in self.meters.values():
            meter.reset()
        return values | ({"perplexity": values["loss"].exp()} if kind == "lm" else {})
