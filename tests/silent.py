"""An ordinary Trainer, for tests of what works without mpx's own."""

import pytorch_lightning as pl

OFF = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def silent_trainer(**given) -> pl.Trainer:
    """One epoch on the CPU, which writes and prints nothing, unless `given` says otherwise."""
    return pl.Trainer(**{"max_epochs": 1, "accelerator": "cpu"} | OFF | given)
