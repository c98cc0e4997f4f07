"""The Lightning callback that times a training with the windows of mpx/measure/windows.py."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.measure.batches import samples_in
from mpx.measure.windows import Windows


class Throughput(Windows, Callback):
    """Times training steps, in any Trainer: `pl.Trainer(callbacks=[mpx.Throughput()])`.

    Throughput is samples ÷ wall time of windows of steps; the device is synchronised only at their ends. The
    windows leave out warm-up steps, evaluation, the first step after a validation within an epoch, and
    everything between epochs.

    warmup_steps: steps to leave out at the start, after a resume and after `restart_warmup`: compilation,
    autotuning, pruning.
    samples: a function from a batch to its number of samples. Without it, their number is the first dimension
    that all tensors of the batch share; if they share none, the throughput is unknown.
    logs: whether to log `speed/train_samples_per_s` after each epoch.

    `samples_per_s` is the throughput so far, over all processes; None before a window has ended.
    `record(None)` returns all that was measured, as `speed` in result.json: samples/s, milliseconds per step,
    seconds of training.
    """

    def __init__(
        self, warmup_steps: int = 10, *, samples: Callable[[Any], int | None] = samples_in, logs: bool = True
    ):
        super().__init__(warmup_steps)
        self.samples_of, self.logs = samples, logs
        self._timed = True  # the loader marks the waits for its batches
        self._fitted = False  # since a checkpoint was loaded

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # a Trainer may fit again, and go on
        self.earlier_s = self.time_to_train_s if trainer.global_step or not self._fitted else 0.0
        self._fitted = True
        # a loader that does not time its batches has no waits
        self.begin(
            trainer.strategy.root_device, lambda: getattr(trainer.train_dataloader, "take_waits", list)()
        )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the loader mark batches on the device's time line, where waiting counts only if the device
        waits.
        """
        loader: Any = trainer.train_dataloader
        self._timed = hasattr(loader, "time_waits")
        if self._timed:
            loader.time_waits(self.clock.mark)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.warm:
            self.enter("warmup")
        self.open_window()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The first step after a validation within an epoch is in no window: a checkpoint may have come
        before its wait for the batch, without which it would be too fast.
        """
        if not self.warm:
            self.enter("warmup")
        elif not self.timing and not self._paused:
            self.enter("steps")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        samples = self.samples_of(batch)
        # processes with samples of their own; with tensor parallelism, several share theirs
        replicas = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        self.stepped(None if samples is None else samples * replicas)

    def pause(self) -> None:
        """Leave out everything until `resume`. Call both between two steps."""
        self.close_window()
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.open_window()

    def restart_warmup(self, trainer: pl.Trainer) -> None:
        self.warm_up_again()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close_window("validation")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.enter("other")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close_window()
        self.read()
        if self.logs and self.samples_per_s is not None:
            for logger in trainer.loggers:
                logger.log_metrics(
                    {"speed/train_samples_per_s": self.samples_per_s}, step=trainer.global_step
                )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.enter("end")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self.interrupt()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.finish()

    def state_dict(self) -> dict[str, Any]:
        return {"time_to_train_s": self.time_to_train_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier_s, self._began, self._fitted = state_dict["time_to_train_s"], None, False

    def record(self, flops_per_sample: float | None) -> dict[str, Any]:
        record = super().record(flops_per_sample)
        if not self._timed:
            record |= {
                "data_wait_fraction": None,
                "data_wait_fraction_reason": "only mpx's own loaders are timed",
            }
        return record
