"""Ctrl-C and SIGTERM are heard as long as a run lasts."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.runs import signals

EVERY = 10  # steps; libraries compile in the first ones, and some microseconds each are nothing


class Listening(Callback):
    """Puts the handlers of `signals` back into force."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % EVERY == 0:
            signals.reinstate()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.reinstate()
