"""Private API of PyTorch Lightning 2.6."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback, RichProgressBar
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mpx.private.torch_modules import BATCH_NORM

NEVER = 2**31 - 1  # steps between two at which DDP times itself, which a CUDA graph cannot record


def closure_result(closure: Any) -> Any:
    """The result of the newest call of Lightning's optimizer closure. `consume_result` would take it away."""
    return closure._result


def set_closure_result(closure: Any, result: Any) -> None:
    """Give Lightning's optimizer closure the result of a step that ran without calling it. It has no
    setter.
    """
    closure._result = result


def before_step(precision: Precision, model: pl.LightningModule, optimizer: Any) -> None:
    """Call the hooks on_before_optimizer_step, then clip the gradients, as Lightning does between a closure
    and its step.
    """
    precision._after_closure(model, optimizer)


def find(trainer: pl.Trainer, kind: type[Callback]) -> Any:
    """The Trainer's first callback of this class; None if it has none."""
    return next((callback for callback in vars(trainer)["callbacks"] if isinstance(callback, kind)), None)


class BarFromOne(RichProgressBar):
    """A progress bar that counts epochs from 1. RichProgressBar has no public hook for it."""

    def _get_train_description(self, current_epoch: int) -> str:
        epochs = self.trainer.max_epochs or -1
        theirs = super()._get_train_description(current_epoch)
        return theirs.replace(f"Epoch {current_epoch}/{epochs - 1}", f"epoch {current_epoch + 1}/{epochs}")


def _replace(part: object, **methods: Callable[..., Any]) -> None:
    vars(part).update(methods)


def leave_signals_alone(trainer: pl.Trainer) -> None:
    """Let mpx handle signals: mpx/runs/signals.py has the handlers, and mpx/runs/checkpoint.py asks whether a
    signal came.

    Lightning 2.6's handler talks to the other processes of the run, and hangs if they are not at the same
    step. Before each step Lightning also asks rank 0 whether a signal came, and waits for the device, so that
    no step is queued behind another. After a Ctrl-C, it ignores further ones until its teardown restores the
    handlers that it remembers.
    """
    connector = trainer._signal_connector

    def remember() -> None:
        connector._original_handlers = connector._get_current_signal_handlers()

    _replace(connector, register_signal_handlers=remember)
    _replace(trainer.fit_loop.epoch_loop, _broadcast_sigterm_tensor=lambda: None)


def continue_with_the_next_epoch(trainer: pl.Trainer) -> None:
    """Let a run with max_steps continue from an epoch's end as a run without it does.

    Lightning 2.6 takes such a run for one that stopped within that epoch. It ends the epoch a second time, so
    that the epoch after it, and its data, are left out.
    """
    _replace(trainer.fit_loop, _iteration_based_training=lambda: False)


def shorten_steps(trainer: pl.Trainer) -> None:
    """Leave out of each batch what mpx's own module and loaders do not need, a fifth of the host's time.

    Lightning looks for batch_idx in the signature of training_step, and moves each batch to the device, where
    mpx's loaders have put it already.
    """
    _replace(
        trainer.fit_loop.epoch_loop,
        _build_kwargs=lambda kwargs, batch, batch_idx: {"batch": batch, "batch_idx": batch_idx},
    )
    _replace(trainer.strategy, batch_to_device=lambda batch, **_: batch)


def combine_what_is_logged(trainer: pl.Trainer) -> None:
    """Have Lightning combine over all of several processes what a module logs for an epoch without
    sync_dist=True, as it does with it.

    Otherwise each process keeps the value of its own samples. What only some processes log stays as it is.
    """
    connector, combined = trainer._logger_connector, []
    reset, epoch_end_reached, on_epoch_end = (
        connector.reset_results,
        connector.epoch_end_reached,
        connector.on_epoch_end,
    )
    if "reset_results" in vars(connector):  # it does already
        return

    def combine() -> None:
        alone = {
            key: metric.meta.sync
            for key, metric in (trainer._results or {}).items()
            if metric.is_tensor and metric.meta.on_epoch and not (metric.has_reset or metric.meta.sync.should)
        }
        of_all: list[set[str]] = [set()] * trainer.world_size
        dist.all_gather_object(of_all, set(alone))
        # all processes combine them in this order
        for key in sorted(set.intersection(*of_all)):
            alone[key].should = True
            combined.append(alone[key])

    def begin_again() -> None:
        while combined:
            # Lightning refuses a value that is logged in another way than in the epoch before
            combined.pop().should = False
        reset()

    def at_the_end() -> None:
        combine()
        epoch_end_reached()

    def after_the_last_hooks() -> None:  # which may have logged more
        combine()
        on_epoch_end()

    _replace(
        connector, epoch_end_reached=at_the_end, on_epoch_end=after_the_last_hooks, reset_results=begin_again
    )


class OneStreamDDP(DDPStrategy):
    """DDP on GPUs whose steps a CUDA graph can record: it is built on the stream on which all steps run.

    Lightning builds DDP on a stream that no later step uses. DDP sends rank 0's buffers to the others before
    each forward pass. It need not if all are batch norm's running means, which training does not read:
    mpx/training/callbacks.py sends those before an evaluation. Source:
    https://docs.pytorch.org/docs/stable/notes/cuda.html#usage-with-distributeddataparallel
    """

    def setup_environment(self) -> None:
        super().setup_environment()
        stream = torch.cuda.Stream(self.root_device)
        stream.wait_stream(torch.cuda.current_stream(self.root_device))
        torch.cuda.set_stream(stream)

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        ddp = DistributedDataParallel(model, device_ids=self.determine_ddp_device_ids(), **self._ddp_kwargs)
        ddp._set_ddp_runtime_logging_sample_rate(NEVER)
        ddp.broadcast_buffers = _training_reads_buffers(model)
        return ddp

    def renew(self) -> None:
        """Build DDP again, which after a backward pass that was broken off refuses every further one."""
        if self.lightning_module is not None:
            self.model = self._setup_model(self.lightning_module)

    def teardown(self) -> None:
        super().teardown()
        torch.cuda.synchronize(self.root_device)
        torch.cuda.set_stream(torch.cuda.default_stream(self.root_device))


def _training_reads_buffers(model: nn.Module) -> bool:
    holders = (module for module in model.modules() if next(module.buffers(recurse=False), None) is not None)
    return not all(isinstance(module, BATCH_NORM) for module in holders)
