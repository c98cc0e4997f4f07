"""What a data set's task is judged by: its loss, torchmetrics' metrics, and the metric of a verdict with its direction.

| task           | loss                     | metrics                        | a verdict and best.ckpt go by |
|----------------|--------------------------|--------------------------------|-------------------------------|
| classification | cross-entropy            | accuracy, for lm perplexity    | accuracy, for lm perplexity   |
| regression     | mean squared error       | mse, mae                       | mse, which must fall          |
| multilabel     | binary cross-entropy     | map (mean average precision), f1 | map                         |
| tokens         | cross-entropy            | f1 (of each class, their mean), accuracy | f1                  |
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric
from torchmetrics.classification import MulticlassF1Score, MultilabelAveragePrecision, MultilabelF1Score

from mpx.spec import Spec

LOSSES = {"regression": mse_loss, "multilabel": binary_cross_entropy_with_logits}  # of float logits and targets of one shape
JUDGED = {"classification": ("accuracy", "max"), "regression": ("mse", "min"), "multilabel": ("map", "max"), "tokens": ("f1", "max")}


def primary_metric(spec: Spec) -> tuple[str, str]:
    """The metric by which runs on such data are compared, and whether it should be high (max) or low (min)."""
    return ("perplexity", "min") if spec.kind == "lm" else JUDGED[spec.task]


def monitored(spec: Spec) -> tuple[str, str]:
    """The metric that best.ckpt goes by. A language model's loss tells more than its perplexity, which can overflow."""
    name, goal = primary_metric(spec)
    return ("val/loss" if spec.kind == "lm" else f"val/{name}", goal)


def meters_of(task: str, classes: int) -> dict[str, Metric]:
    """The metrics of a task beside loss and accuracy. Their arguments are not checked, since that waits for the device.

    The errors are summed in float64: after many batches, a sum in FP32 rounds away a part of each further one.
    """
    if task == "regression":
        return {"mse": MeanSquaredError().set_dtype(torch.float64), "mae": MeanAbsoluteError().set_dtype(torch.float64)}
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
        meter.update(logits.double().sigmoid(), y.long())  # in FP32, all logits above 17 become 1 and lose their order
    else:
        meter.update(logits.argmax(-1), y)
