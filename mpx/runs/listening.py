"""Keep the handlers of Ctrl-C and SIGTERM in force while a run trains."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.runs import signals

INTERVAL = 10  # steps; the call takes microseconds, and libraries compile mostly in the first steps


class Listening(Callback):
    """Reinstates the handlers of mpx/runs/signals.py, which compilers replace."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % INTERVAL == 0:
            signals.reinstate()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.reinstate()
