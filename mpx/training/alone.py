"""Measure the speed of a setting by itself: the first steps of its run, without validation, checkpoints or test.

The configuration stays that of the whole run, so that `speed=auto` chooses as for the whole run. A pruned model is timed in the state in
which its run ends: it is pruned before the first step.
"""

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback

from mpx.machine import keep_within_quota
from mpx.measure.throughput import Throughput
from mpx.precision.switches import float32_matmuls
from mpx.runs.folder import Folder
from mpx.training.assemble import assemble
from mpx.training.devices import divide_global_batch, processes_here
from mpx.training.fit import quiet
from mpx.training.record import speed_of

STEPS = 100  # fewest steps that are timed
SECONDS = 2.0  # shortest time
MAX_SECONDS = 30.0  # seconds after which fewer steps are enough


class Enough(Callback):
    """Stops training once enough steps have been timed."""

    def __init__(self, throughput: Throughput):
        self.throughput = throughput
        self.steps = 0  # after the warm-up
        self._warm_since = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Lightning calls the throughput before. The step that ends the warm-up is not timed."""
        if not self.throughput.warm:
            self.steps, self._warm_since = 0, 0.0  # it warms up again where the steps are compiled from now on
            return
        if not self._warm_since:
            self._warm_since = time.perf_counter()
            return
        self.steps += 1
        seconds = time.perf_counter() - self._warm_since
        trainer.should_stop = (self.steps >= STEPS and seconds >= SECONDS) or seconds >= MAX_SECONDS


def speed_alone(cfg: DictConfig, folder: Path) -> dict[str, Any]:
    """The speed of the setting `cfg`, as in result.json. folder: for what a run writes on its way; the caller removes it."""
    quiet()
    keep_within_quota(processes_here(cfg.trainer))
    cfg = _only_steps(cfg)
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    run = assemble(divide_global_batch(cfg), Folder(folder), lambda trainer: trainer.logger.begin(), stopper=Enough)
    with float32_matmuls(run.precision.mode, emulate=run.precision.emulate):
        run.trainer.fit(run.module, datamodule=run.datamodule)
    run.trainer.logger.close()
    return speed_of(run, cfg.output_dir) | {"threads": torch.get_num_threads()}


def _only_steps(cfg: DictConfig) -> DictConfig:
    """`cfg` without what a run does beside its steps."""
    cfg = cfg.copy()
    cfg.profile = cfg.audit = False
    cfg.trainer.limit_val_batches = 0
    cfg.sparsity.update({key: False for key in ("permute", "sensitivity") if key in cfg.sparsity})
    return cfg
