"""Keep the handlers of the signals that end a run in force while it trains."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.runs import signals, watch

INTERVAL = 10  # steps; the call takes microseconds, and libraries compile mostly in the first steps


class Listening(Callback):
    """Reinstates the handlers of mpx/runs/signals.py, which compilers replace, and lets a run that `saves` save first."""

    def __init__(self, saves: bool) -> None:
        self.saves = saves

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.take_back()
        signals.save_first(self.saves)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % INTERVAL == 0:
            signals.reinstate()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.reinstate()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.save_first(False)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.take_back()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        signals.save_first(False)
        watch.end_others()
