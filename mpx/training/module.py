"""The LightningModule: loss, metrics, optimizer. Its state_dict is the model's own, so checkpoints load into the plain model."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric, Metric

from mpx.acceleration.compiled import Compiled
from mpx.acceleration.graph import StepGraph, someone_watches
from mpx.acceleration.search import CudnnSearch
from mpx.spec import Spec
from mpx.training.ema import Ema
from mpx.training.optimizer import Schedule, build_optimizer, say_whether_recorded
from mpx.training.tta import averaged


class TrainingModule(pl.LightningModule):
    """Trains `model` by cross-entropy on batches (x, y) as Spec describes them.

    ema: keeps an average of the weights, or None. label_smoothing: in training only. tta: as mpx.training.tta takes it, in the test only.
    """

    search: CudnnSearch | None = None  # of cuDNN, among its algorithms
    graph: StepGraph | None = None  # repeats whole steps
    compiled: Compiled | None = None  # forward_loss
    _batch: tuple[Tensor, Tensor] | None = None  # of the step that runs now

    def __init__(
        self,
        model: nn.Module,
        spec: Spec,
        optimizer: DictConfig,
        schedule: Schedule,
        ema: Ema | None = None,
        label_smoothing: float = 0.0,
        tta: str = "none",
    ):
        super().__init__()
        self.model, self.spec, self.optimizer_cfg, self.schedule, self.ema = model, spec, optimizer, schedule, ema
        self.label_smoothing, self.tta = label_smoothing, tta
        self.meters = nn.ModuleDict({stage: nn.ModuleDict(_meters()) for stage in ("val_", "test_")})
        self.results: dict[str, float] = {}  # the newest of each metric, in full precision

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def loss(self, logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy in FP32. logits: [B, C] or [B, T, V]; y: [B] or [B, T]."""
        return cross_entropy(logits.flatten(0, -2).float(), y.flatten(), label_smoothing=label_smoothing)

    def forward_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self(x), y, self.label_smoothing)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._batch = batch

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch if self.graph is None else self.graph.batch(batch)
        return self.forward_loss(x, y) if self.compiled is None or self._watched() else self.compiled(x, y)

    def _watched(self) -> bool:
        return someone_watches() or self.trainer.precision_plugin.watched

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate("val_", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate("test_", batch)

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        logits = averaged(self, x, self.tta if stage == "test_" else "none")
        meters = self.meters[stage]
        loss = self.loss(logits, y)
        meters["loss"].update(loss, weight=torch.full_like(loss, y.numel(), dtype=torch.float64))  # a number would wait for the device
        meters["accuracy"].update((logits.argmax(-1) == y).double())

    def on_validation_epoch_end(self) -> None:
        self._log_epoch("val_")

    def on_test_epoch_end(self) -> None:
        self._log_epoch("test_")

    def _log_epoch(self, stage: str) -> None:
        values = {f"{stage[:-1]}/{name}": meter.compute() for name, meter in self.meters[stage].items()}
        if self.spec.kind == "lm":
            values[f"{stage[:-1]}/perplexity"] = values[f"{stage[:-1]}/loss"].exp()
        for meter in self.meters[stage].values():
            meter.reset()
        self.results |= {name: value.item() for name, value in values.items()}
        self.log_dict(values, logger=stage == "val_", sync_dist=True)  # equal on all ranks already

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = build_optimizer(self.model, self.optimizer_cfg)
        self.schedule.to(self.device)
        self.schedule.apply(optimizer)
        return optimizer

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """What counts steps (learning rate, average of the weights) counts those that were taken."""
        if self.graph is None:
            self.take_step(optimizer, optimizer_closure)
            return
        precision = self.trainer.precision_plugin
        steps = precision.steps
        self.graph.run(self._batch, partial(self.take_step, optimizer, optimizer_closure), optimizer_closure, watched=self._watched())
        precision.steps = steps + 1  # counted by the host, which a replay passes by

    def take_step(self, optimizer: Any, optimizer_closure: Any) -> None:
        self.schedule.apply(optimizer.optimizer)
        say_whether_recorded(optimizer.optimizer)
        with nullcontext() if self.search is None else self.search():
            optimizer.step(closure=optimizer_closure)
        skipped = self.trainer.precision_plugin.skipped_last
        self.schedule.advance(skipped)
        if self.ema is not None:
            self.ema.update(self.model, skipped)

    def on_train_end(self) -> None:
        """Lightning takes the weights to the CPU next."""
        if self.graph is not None:
            self.graph.release()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["schedule"] = {"position": int(self.schedule.position)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning's own checkpoints count steps that were asked for."""
        self.schedule.position.fill_(checkpoint.get("schedule", {"position": checkpoint["global_step"]})["position"])

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.model.load_state_dict(state_dict, *args, **kwargs)


def _meters() -> dict[str, Metric]:
    """Sums on the device in float64; nan_strategy is set so that an update does not wait for the device."""
    return {name: MeanMetric(nan_strategy="disable").set_dtype(torch.float64) for name in ("loss", "accuracy")}
