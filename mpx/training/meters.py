"""Loss and metrics of an evaluation, one code for a training's test and for a served model, and which test samples a run has right."""

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from mpx.processes import from_all
from mpx.record.files import MAX_SAMPLES
from mpx.spec import NO_LABEL, Spec
from mpx.training.tasks import LOSSES, loss_of, meters_of, update


def judged(logits: Tensor, y: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """The logits and targets that count: of tokens only those with a label, as [N, classes] and [N]. logits, y: as in Spec."""
    return (logits[y != NO_LABEL], y[y != NO_LABEL]) if task == "tokens" else (logits, y)


class Meters(nn.ModuleDict):
    """Means in float64 on the device, and the metrics of the task. Without nan_strategy="disable" every update would wait for the device.

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


class Right:
    """For classification of whole samples. It waits for no device before `take`."""

    def __init__(self, spec: Spec):
        self.kept = spec.task == "classification" and spec.kind != "lm"
        self._batches: list[Tensor] = []

    def add(self, logits: Tensor, y: Tensor) -> None:
        """One batch of this process. logits, y: as in Spec."""
        if self.kept:
            self._batches.append(logits.argmax(-1) == y)

    def take(self) -> np.ndarray | None:
        """Bool [samples] of all processes, which all call this, since the last call; None where it is not kept.

        Sample i is number i // ranks of rank i % ranks, as mpx.data.order.eval_batches spreads them. A test that is limited to some
        batches may leave gaps, and then nothing is kept.
        """
        if not self.kept:
            return None
        mine = torch.cat(self._batches).cpu().numpy() if self._batches else np.empty(0, dtype=bool)
        self._batches = []
        parts = from_all(mine)
        ranks, total = len(parts), sum(map(len, parts))
        if total > MAX_SAMPLES or [len(part) for part in parts] != [-(-(total - rank) // ranks) for rank in range(ranks)]:
            return None
        found = np.empty(total, dtype=bool)
        for rank, part in enumerate(parts):
            found[rank::ranks] = part
        return found
