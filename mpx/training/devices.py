"""The devices that a run trains on."""

import copy
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.measure.devices import usable_gpus
from mpx.settings.reachable import check_cpu_devices
from mpx.system.launch import check_layout, launch
from mpx.system.printing import how_many


@dataclass(frozen=True)
class Devices:
    root: torch.device  # the device of this process
    count: int  # number of devices of the whole run


def choose_devices(trainer: DictConfig) -> Devices:
    """Raises UserError for a device that this machine does not have, and for processes that do not fit the
    settings.
    """
    gpus = usable_gpus("trainer.accelerator", trainer.accelerator)
    on_cpu = not gpus
    if on_cpu:
        check_cpu_devices(trainer.devices)
    chosen = (
        list(range(trainer.devices if isinstance(trainer.devices, int) else 1))
        if on_cpu
        else _chosen(trainer.devices, gpus)
    )
    check_layout(len(chosen), trainer.num_nodes)
    root = torch.device("cpu") if on_cpu else torch.device("cuda", chosen[launch().local_rank])
    return Devices(root, len(chosen) * trainer.num_nodes)


def processes_here(trainer: DictConfig) -> int:
    """The number of processes of the run on this machine. Raises UserError as `choose_devices`."""
    return choose_devices(trainer).count // trainer.num_nodes


def divide_global_batch(cfg: DictConfig) -> DictConfig:
    """The settings, with data.batch_size computed from data.global_batch_size if that is set. Raises
    UserError if it is no multiple of the number of devices.
    """
    total = cfg.data.global_batch_size
    if total is None:
        return cfg
    count = choose_devices(cfg.trainer).count
    if total % count:
        near = max(total // count, 1) * count
        raise UserError(
            f"data.global_batch_size={total} is not a multiple of the {count} devices. For example "
            f"data.global_batch_size={near}."
        )
    divided = copy.deepcopy(cfg)
    divided.data.batch_size = total // count
    return divided


def _chosen(devices: int | str | list[int], gpus: int) -> list[int]:
    """The numbers of this machine's GPUs to use, of `gpus` that it has. devices: trainer.devices."""
    if isinstance(devices, list):
        chosen = devices
    else:
        chosen = list(range(devices if isinstance(devices, int) else gpus))
    if max(chosen) >= gpus:
        raise UserError(
            f"trainer.devices={devices}: this machine has {how_many(gpus, 'GPU')}. Lower trainer.devices."
        )
    return chosen
