"""The devices of a run, and its Lightning Trainer."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities import rank_zero_only

from mpx.errors import UserError
from mpx.measure.devices import usable_gpus
from mpx.precision.plugin import ModePrecision
from mpx.private.lightning import (
    OneStreamDDP,
    combine_what_is_logged,
    continue_with_the_next_epoch,
    leave_signals_alone,
    shorten_steps,
)
from mpx.runs.checkpoint import WholeFiles
from mpx.settings.reachable import check_cpu_devices
from mpx.settings.sparsity import nothing_to_train
from mpx.settings.values import as_dict
from mpx.system.launch import check_layout, cluster_environment, launch
from mpx.system.printing import how_many
from mpx.training.logging import RunLogger

PASSED = (  # settings that the Trainer gets as they are
    "max_epochs", "devices", "num_nodes", "accumulate_grad_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "log_every_n_steps",
    "check_val_every_n_epoch", "limit_train_batches", "limit_val_batches", "limit_test_batches",
)  # fmt: skip


class Unprofiled(PassThroughProfiler):
    """Lightning times some 30 actions in a step. Its default enters a generator for each, which takes a tenth
    of the host's time.
    """

    def profile(self, action_name: str) -> Any:
        return nullcontext()


@dataclass(frozen=True)
class Devices:
    root: torch.device  # the device of this process
    count: int  # number of devices of the whole run


def choose_devices(trainer: DictConfig) -> Devices:
    """Raises UserError for a device that this machine does not have, and for processes that do not fit the
    settings.
    """
    devices, gpus = trainer.devices, usable_gpus("trainer.accelerator", trainer.accelerator)
    if not gpus:
        check_cpu_devices(devices)
    if isinstance(devices, int | str):
        devices = range(devices if isinstance(devices, int) else max(gpus, 1))
    chosen = list(devices)
    if gpus and max(chosen) >= gpus:
        raise UserError(
            f"trainer.devices={trainer.devices}: this machine has {how_many(gpus, 'GPU')}. Use fewer, or "
            "others."
        )
    check_layout(len(chosen), trainer.num_nodes)
    root = torch.device("cuda", chosen[launch().local_rank]) if gpus else torch.device("cpu")
    return Devices(root, len(chosen) * trainer.num_nodes)


def build_trainer(
    cfg: DictConfig, folder: Path, devices: Devices, precision: ModePrecision, logger: RunLogger,
    callbacks: list[Callback], *,
    project: bool = False, unused_parameters: bool = False,
) -> pl.Trainer:  # fmt: skip
    """project: its loaders are the user's. unused_parameters: steps may leave out parameters, as those of one
    optimizer leave out another's.
    """
    settings, values = cfg.trainer, as_dict(cfg.trainer)
    # Lightning reads it from RANK or SLURM_PROCID, which others set as well
    vars(rank_zero_only)["rank"] = launch().rank
    trainer = pl.Trainer(
        **{key: values[key] for key in PASSED},
        max_steps=0 if nothing_to_train(cfg.sparsity) else settings.max_steps,
        accelerator="gpu" if devices.root.type == "cuda" else "cpu",
        strategy=_strategy(devices, unused_parameters=unused_parameters),
        plugins=[precision, WholeFiles(), cluster_environment(launch())],
        callbacks=callbacks,
        logger=logger,
        profiler=Unprofiled(),
        default_root_dir=folder,
        enable_progress_bar=any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        num_sanity_val_steps=int(project and cfg.metric is None),  # a project is asked for its metric
        use_distributed_sampler=project,  # mpx's loaders shard themselves and repeat no sample
    )
    leave_signals_alone(trainer)
    continue_with_the_next_epoch(trainer)
    if not project:
        shorten_steps(trainer)
    if project and devices.count > 1:
        combine_what_is_logged(trainer)
    return trainer


def _strategy(devices: Devices, *, unused_parameters: bool) -> str | DDPStrategy:
    if devices.count == 1:
        return "auto"
    if devices.root.type == "cuda":  # a recorded step keeps its gradients in DDP's buckets
        return OneStreamDDP(gradient_as_bucket_view=True, find_unused_parameters=unused_parameters)
    return DDPStrategy(find_unused_parameters=unused_parameters)
