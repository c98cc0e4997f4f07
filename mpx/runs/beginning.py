"""The moment at which a run begins."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class Beginning(Callback):
    """Calls `begin` once, immediately before the first batch. By then everything that a user can get wrong has been checked, including the
    checkpoint, whose parts Lightning has restored."""

    def __init__(self, begin: Callable[[pl.Trainer], Any]):
        self.begin, self.begun = begin, False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.ensure_begun(trainer)

    def ensure_begun(self, trainer: pl.Trainer) -> None:
        """A run that continues after its last step has no first batch."""
        if not self.begun:
            self.begun = True
            self.begin(trainer)
