"""The moment from which a run has begun."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class Beginning(Callback):
    """Calls `begin` once, immediately before the first batch. All that a user can get wrong is checked by then, also the checkpoint, whose
    parts Lightning has restored."""

    def __init__(self, begin: Callable[[pl.Trainer], Any]):
        self.begin, self.begun = begin, False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.at_the_latest_now(trainer)

    def at_the_latest_now(self, trainer: pl.Trainer) -> None:
        """A run that continues after its last step has no first batch."""
        if not self.begun:
            self.begun = True
            self.begin(trainer)
