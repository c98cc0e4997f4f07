"""The LightningModule: steps, metrics, optimizer. Its state_dict is the model's own, so a checkpoint loads
into the plain model.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn import functional as F

from mpx.acceleration.apply import Acceleration
from mpx.acceleration.graph import someone_watches
from mpx.data.spec import NO_LABEL, Spec
from mpx.data.tasks import Meters, TrainingLoss
from mpx.precision.plugin import ModePrecision
from mpx.system.processes import from_all
from mpx.training.ema import Ema
from mpx.training.optimizer import Schedule, build_optimizer, mark_capturable

PLAIN = Acceleration()
MAX_SAMPLES = 500_000  # of Right; as text their bits take 83 KB, and a field of a CSV file at most 128 KiB


class TrainingModule(pl.LightningModule):
    """Trains the model of `loss` on batches (x, y) as Spec describes them. tta: as in `averaged`."""

    def __init__(
        self,
        loss: TrainingLoss,
        spec: Spec,
        optimizer: DictConfig,
        schedule: Schedule,
        plugin: ModePrecision,
        acceleration: Acceleration = PLAIN,
        ema: Ema | None = None,
        tta: str = "none",
    ):
        super().__init__()
        self.model: nn.Module = loss.model
        self.loss, self.spec, self.optimizer_cfg, self.schedule, self.plugin = (
            loss,
            spec,
            optimizer,
            schedule,
            plugin,
        )
        self.acceleration, self.ema, self.tta = acceleration, ema, tta
        self._meters = {stage: Meters(spec.task, spec.classes) for stage in ("val_", "test_")}
        self.meters = nn.ModuleDict(self._meters)  # moves them to the device
        self.results: dict[str, float] = {}  # the newest value of each metric, in full precision
        # bool [samples]: those of the test set that the run has right, where that is kept
        self.right: np.ndarray | None = None
        self._right = Right(spec)
        self._batch: tuple[Tensor, Tensor]  # of the present step

    @property
    def validated(self) -> list[str]:
        """The names of what a validation gives."""
        names = [*self._meters["val_"].meters, *(["perplexity"] if self.spec.kind == "lm" else [])]
        return [f"val/{name}" for name in names]

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._batch = batch

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        graph, compiled = self.acceleration.graph, self.acceleration.compiled
        x, y = batch if graph is None else graph.batch(batch)
        loss = self.loss.of_batch(x, y) if compiled is None or self._watched() else compiled(x, y)
        return loss * self._share(y) if self.spec.task == "tokens" and self.trainer.world_size > 1 else loss

    def _share(self, y: Tensor) -> Tensor:
        """The factor of this process's mean loss in the mean over the labels of all: processes have different
        numbers of them, and their gradients are averaged.
        """
        labels = (y != NO_LABEL).sum().float()
        total = labels.clone()
        dist.all_reduce(total)  # Lightning's reduce has a barrier, which a CUDA graph cannot record
        return labels * self.trainer.world_size / total.clamp(min=1)

    def _watched(self) -> bool:
        return someone_watches() or self.plugin.watched

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate("val_", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate("test_", batch)

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        logits = averaged(self, x, self.tta if stage == "test_" else "none")
        self._meters[stage].add(logits, y)
        if stage == "test_":
            self._right.add(logits, y)

    def on_validation_epoch_end(self) -> None:
        self._log_epoch("val_")

    def on_test_epoch_end(self) -> None:
        self._log_epoch("test_")
        self.right = self._right.take()

    def _log_epoch(self, stage: str) -> None:
        values = {
            f"{stage[:-1]}/{name}": value for name, value in self._meters[stage].take(self.spec.kind).items()
        }
        self.log_dict(values, logger=False, sync_dist=True)  # equal on all ranks already
        plain = {name: value.item() for name, value in values.items()}
        self.results |= plain
        if stage == "val_" and self.trainer.logger is not None:
            # Lightning would give the validation after N steps the number N − 1, which a run that is
            # continued may log again. One after the training follows another that has number N.
            after_training = self.trainer.state.fn == TrainerFn.VALIDATING
            self.trainer.logger.log_metrics(plain, step=self.trainer.global_step + after_training)

    def forget_results(self, trainer: pl.Trainer) -> None:
        """After a pruning, a validation of the dense model no longer counts."""
        self.results.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = build_optimizer(self.model, self.optimizer_cfg)
        self.schedule.to(self.device)
        self.schedule.apply(optimizer)
        return optimizer

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        graph, compiled = self.acceleration.graph, self.acceleration.compiled
        closure = optimizer_closure
        if compiled is not None and self.trainer.world_size == self.trainer.accumulate_grad_batches == 1:
            # other ranks would wait in their all-reduce; a second pass would accumulate twice
            closure = compiled.guarded(closure)
        step = partial(self.take_step, optimizer, closure)
        if graph is None:
            step()
            return
        with self.plugin.one_step():
            failed = getattr(self.trainer.strategy, "renew", lambda: None)
            graph.run(self._batch, step, optimizer_closure, watched=self._watched(), failed=failed)

    def take_step(self, optimizer: Any, optimizer_closure: Any) -> None:
        """A step that the loss scaler skips advances neither the schedule nor the average of the weights."""
        self.schedule.apply(optimizer.optimizer)
        mark_capturable(optimizer.optimizer)
        search = self.acceleration.search
        with nullcontext() if search is None else search():
            optimizer.step(closure=optimizer_closure)
        skipped = self.plugin.skipped_last
        self.schedule.advance(skipped)
        if self.ema is not None:
            self.ema.update(skipped)

    def on_train_end(self) -> None:
        """Free the graph before Lightning moves the weights to the CPU."""
        self.acceleration.release()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["schedule"] = {"position": int(self.schedule.position)}
        # a run that was cut off after its last step validates no more
        checkpoint["results"] = dict(self.results)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint without a position has Lightning's count of steps, which includes skipped ones."""
        self.schedule.position.fill_(
            checkpoint.get("schedule", {"position": checkpoint["global_step"]})["position"]
        )
        self.results = {name: float(value) for name, value in checkpoint.get("results", {}).items()}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.model.load_state_dict(state_dict, *args, **kwargs)


class Right:
    """Which test samples the model gets right, for predictions.json, where a sample has one class. They stay
    on the device until `take`.
    """

    def __init__(self, spec: Spec):
        self.kept = spec.task == "classification" and spec.kind != "lm"
        self._batches: list[Tensor] = []

    def add(self, logits: Tensor, y: Tensor) -> None:
        """One batch of this process. logits, y: as in Spec."""
        if self.kept:
            self._batches.append(logits.argmax(-1) == y)

    def take(self) -> np.ndarray | None:
        """Bool [samples] of all processes, which all call this, since the last call; None where it is not
        kept.

        Sample i is number i // ranks of rank i % ranks, as mpx.data.order.eval_batches spreads them. A test
        that is limited to some batches may leave gaps, and then nothing is kept.
        """
        if not self.kept:
            return None
        mine = torch.cat(self._batches).cpu().numpy() if self._batches else np.empty(0, dtype=bool)
        self._batches = []
        parts = from_all(mine)
        ranks, total = len(parts), sum(map(len, parts))
        if total > MAX_SAMPLES or [len(part) for part in parts] != [
            -(-(total - rank) // ranks) for rank in range(ranks)
        ]:
            return None
        found = np.empty(total, dtype=bool)
        for rank, part in enumerate(parts):
            found[rank::ranks] = part
        return found


def averaged(forward: Callable[[Tensor], Tensor], x: Tensor, kind: str) -> Tensor:
    """Test-time augmentation: logits [B, classes] averaged over views of images x [B, C, H, W], in FP32 if
    there are several.

    kind: none takes the image alone; x may then be any input. flip also takes its mirror image. flip_shift
    gives these two half of the weight, and a quarter each to the same two moved one pixel down and right, and
    one pixel up and left, with the border mirrored. Source: Jordan 2024, arXiv:2404.00498, section 3.5.
    """
    if kind == "none":
        return forward(x)
    logits = _both_ways(forward, x)
    if kind == "flip":
        return logits
    height, width = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
    moved = [_both_ways(forward, padded[:, :, at : at + height, at : at + width]) for at in (0, 2)]
    return logits / 2 + sum(moved) / 4


def _both_ways(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return (forward(x).float() + forward(x.flip(-1)).float()) / 2
