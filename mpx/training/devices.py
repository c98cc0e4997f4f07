"""The devices that a run trains on."""

import os
from dataclasses import dataclass

import torch
from lightning_fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig

from mpx.channels import local_rank
from mpx.errors import UserError
from mpx.settings.reachable import check_cpu_devices, require_gpu


@dataclass(frozen=True)
class Devices:
    root: torch.device  # the device of this process
    count: int  # number of devices of the whole run


def choose_devices(cfg: DictConfig) -> Devices:
    """Choose by the trainer's settings `cfg`. Raises UserError for a device that this machine does not have."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require_gpu("trainer.accelerator", cfg.accelerator, there=gpus > 0)
    if not gpus or cfg.accelerator == "cpu":
        check_cpu_devices(cfg.devices)
        return Devices(torch.device("cpu"), cfg.devices if isinstance(cfg.devices, int) else 1)
    wish = list(range(gpus)) if cfg.devices == "auto" else cfg.devices
    chosen = list(range(wish)) if isinstance(wish, int) else list(wish)
    if max(chosen) >= gpus:
        raise UserError(f"trainer.devices={cfg.devices}: this machine has {gpus} GPUs. Lower trainer.devices.")
    return Devices(torch.device("cuda", chosen[local_rank()]), len(chosen))


def cluster_environment() -> list[ClusterEnvironment]:
    """Lightning's plugin for a process that nothing but mpx multiplies; none where srun or torchrun has started several.

    By itself Lightning takes SLURM_NTASKS for a sign of srun, and the shell of an allocation has it, too.
    """
    started = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    return [] if started > 1 or TorchElasticEnvironment.detect() else [LightningEnvironment()]
