"""The Lightning Trainer of a run, and the order of its callbacks."""

from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities import rank_zero_only

from mpx.launch import launch
from mpx.precision.plugin import ModePrecision
from mpx.private.lightning import (
    OneStreamDDP,
    combine_what_is_logged,
    continue_with_the_next_epoch,
    find_the_end_of_streams,
    give_processes,
    leave_signals_alone,
    skip_empty_hooks,
    start_processes_alike,
)
from mpx.runs import watch
from mpx.runs.agreement import Agreement
from mpx.runs.beginning import Beginning
from mpx.runs.checkpoint import Best, Last
from mpx.runs.checkpoint_writer import CheckpointWriter
from mpx.runs.history import Continued, History
from mpx.runs.listening import Listening
from mpx.runs.random_state import RandomState
from mpx.runs.ranks import cluster_environment
from mpx.settings.sparsity import nothing_to_train
from mpx.sparsity.callback import Pruning
from mpx.training.devices import Devices
from mpx.training.ema import Ema
from mpx.training.last_validation import LastValidation
from mpx.training.logging import RunLogger, Scalars
from mpx.training.measuring import Measuring
from mpx.training.progress import progress

PASSED = (  # settings that the Trainer gets as they are
    "max_epochs", "devices", "num_nodes", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "log_every_n_steps",
    "check_val_every_n_epoch", "limit_train_batches", "limit_val_batches", "limit_test_batches",
)  # fmt: skip


def build_trainer(
    cfg: DictConfig, folder: Path, devices: Devices, precision: ModePrecision, history: History | Continued, best: Best,
    measuring: Measuring, pruning: Pruning | None, ema: Ema | None, beginning: Beginning, stopper: Callback | None = None,
    compiling: Callback | None = None, *, own: Sequence[Callback] | None = None, manual: bool = False, advice: str,
) -> pl.Trainer:  # fmt: skip
    """stopper: of a run that is only timed, and leaves no checkpoint. compiling: decides after the first steps whether to compile the rest.
    own: what a module of the user's own needs; None: it is mpx's. manual: its steps may leave out parameters, as those of one optimizer
    leave out another's. advice: what to try when the run has diverged."""
    settings, writer = cfg.trainer, CheckpointWriter()
    scalars = Scalars(
        settings.log_every_n_steps, per_step=precision.scalars, per_epoch=measuring.of_an_epoch, trouble=precision.trouble, advice=advice
    )
    last = Last(folder, settings.checkpoint_every_n_steps, best, writer)
    # Lightning calls them in this order, since:
    # - processes get rank 0's buffers after the averages have replaced them: each process has computed its own from its batches;
    # - the first step is watched before numerics and throughput see its batch;
    # - the profile pauses the throughput after the throughput has counted the step;
    # - scalars read what the others have measured;
    # - compiling begins after the throughput has counted the last uncompiled step, so that it can measure compiled steps alone;
    # - the run begins after all other callbacks have restored their state;
    # - `last` links to the checkpoint that `best` has saved.
    parts = [
        pruning, ema,
        Listening(saves=stopper is None), RandomState(apart=own is None), Agreement(), history, *(own or ()),
        measuring.observed.step, measuring.numerics, measuring.throughput, measuring.profile,
        scalars, *progress(settings.progress, measuring.throughput, cfg.get("metric")),
        beginning, compiling, *([LastValidation(), best, last] if stopper is None else [stopper]),
    ]  # fmt: skip
    callbacks = [part for part in parts if part is not None]
    skip_empty_hooks(callbacks)
    rank_zero_only.rank = launch().rank  # Lightning reads it from RANK or SLURM_PROCID, which others set as well
    if devices.count > 1:
        start_processes_alike()
        give_processes(watch.started.extend)
    trainer = pl.Trainer(
        **{key: OmegaConf.to_object(settings)[key] for key in PASSED},
        max_steps=0 if nothing_to_train(cfg.sparsity) else settings.max_steps,
        accelerator="gpu" if devices.root.type == "cuda" else "cpu",
        strategy=_strategy(devices, manual=manual),
        plugins=[precision, writer, cluster_environment(launch())],
        callbacks=callbacks,
        logger=RunLogger(folder, purge_step=history.steps[-1] + 1 if history.steps else 0),
        default_root_dir=folder,
        enable_checkpointing=stopper is None,
        enable_progress_bar=any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=own is not None,  # mpx's loaders shard themselves and repeat no sample
    )
    leave_signals_alone(trainer)
    continue_with_the_next_epoch(trainer)
    if own is not None:
        find_the_end_of_streams(trainer)
        if devices.count > 1:
            combine_what_is_logged(trainer)
    return trainer


def _strategy(devices: Devices, *, manual: bool) -> str | DDPStrategy:
    """manual: steps may leave out parameters."""
    if devices.count == 1:
        return "auto"
    if devices.root.type == "cuda":  # a recorded step keeps its gradients in DDP's buckets
        return OneStreamDDP(gradient_as_bucket_view=True, find_unused_parameters=manual)
    return DDPStrategy(find_unused_parameters=manual)
