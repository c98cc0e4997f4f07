"""Check that the devices, files and modules of a configuration exist, as far as this is possible without
PyTorch.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.settings.choices import install
from mpx.settings.data import family
from mpx.system.launch import check_layout
from mpx.system.machine import usable_cores
from mpx.system.printing import how_many

# data.name -> folders below data.root, one of which holds the set's files
BELOW_ROOT = {
    "mnist": ("MNIST/raw",),
    "fashion_mnist": ("FashionMNIST/raw",),
    "cifar10": ("cifar-10-batches-py",),
    "sst2": ("sst2", "SST-2"),
    "wikitext2": ("wikitext-2",),
}

LOGGED_BY = {"WandbLogger": "wandb", "MLFlowLogger": "mlflow"}  # class of Lightning's -> the package it needs


def check_files(data: Mapping[str, Any]) -> None:
    """Raise UserError for the first file or folder of the data settings that does not exist."""
    _check_paths(data)
    _check_root(data)
    if family(data) == "huggingface" and find_spec("datasets") is None:
        raise UserError(
            f"data=huggingface needs the package datasets, which is not installed. {install('data')} adds it."
        )


def no_gpu() -> bool:
    """Whether PyTorch certainly finds no GPU; False if only PyTorch can decide."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return True
    if sys.platform == "darwin":
        return True
    if Path("/dev/kfd").exists():  # AMD's driver
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return True
    return False


def require_gpu(key: str, accelerator: str, *, there: bool) -> None:
    """Raise UserError if a GPU is asked for and there is none. there: from `no_gpu` at first, from PyTorch
    once it is imported.
    """
    if accelerator == "gpu" and not there:
        raise UserError(
            f"{key}=gpu: no CUDA device is visible here. Use {key}=cpu or auto, or check nvidia-smi."
        )


def check_cpu_devices(requested: Any) -> None:
    """Raise UserError for trainer.devices that a machine without a GPU does not have. A device is a process
    there.
    """
    if not isinstance(requested, int | str):
        raise UserError(
            f"trainer.devices={list(requested)} picks GPUs, and no CUDA device is visible here. Use a "
            "number, as trainer.devices=2."
        )
    if isinstance(requested, int) and requested > usable_cores():
        raise UserError(
            f"trainer.devices={requested} starts as many processes, and this process may use "
            f"{how_many(usable_cores(), 'core')}. Use at "
            f"most trainer.devices={usable_cores()}."
        )


def check_device(cfg: DictConfig) -> None:
    """Raise UserError for a device that does not exist, or that cannot do what is asked of it."""
    requested, mode = cfg.trainer.accelerator, cfg.precision.mode
    require_gpu("trainer.accelerator", requested, there=not no_gpu())
    devices = cfg.trainer.devices
    if requested == "cpu" or no_gpu():
        check_cpu_devices(devices)
    if devices != "auto":  # else PyTorch counts them
        check_layout(devices if isinstance(devices, int) else len(devices), cfg.trainer.num_nodes)
    if mode in ("tf32", "fp8") and cfg.precision.emulate == "never" and (requested == "cpu" or no_gpu()):
        raise UserError(
            f"precision.emulate=never with precision={mode} on a CPU: CPUs have no {mode.upper()}. Use "
            "precision.emulate=auto or a GPU."
        )


def _check_paths(data: Mapping[str, Any]) -> None:
    for name in ("path", "val_path", "test_path"):
        given = data.get(name)
        if given is None:
            continue
        path = os.path.expanduser(given)
        # Path.exists raises where a name is too long or a folder may not be read
        if not os.path.exists(path):
            raise UserError(
                f"data.{name}={given} is not there (seen from {Path.cwd()}). Give the path of "
                "the file or folder to train on."
            )


def _check_root(data: Mapping[str, Any]) -> None:
    """A folder that a download may make need not exist."""
    below = BELOW_ROOT.get(family(data), ())
    if not below or data["download"]:
        return
    root, held = Path(data["root"]).expanduser(), " or ".join(f"{folder}/" for folder in below)
    if not any(os.path.isdir(root / folder) for folder in below):
        problem = f"holds no {held}" if os.path.isdir(root) else f"is not there (seen from {Path.cwd()})"
        raise UserError(
            f"data.root={data['root']} {problem}. Give the folder that holds {held}, or set "
            "data.download=true."
        )


def check_logger(target: str | None) -> None:
    """Raise UserError for a logger of Lightning's whose package is not installed."""
    package = LOGGED_BY.get(str(target).rpartition(".")[2])
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"logger={package} needs the package {package}, which is not installed. pip install {package} "
            "adds it."
        )


def check_target(group: str, settings: Mapping[str, Any]) -> None:
    """Raise UserError if the module of a group's _target_ cannot be found. Nothing is imported, so its names
    are looked up later.
    """
    if (target := settings.get("_target_")) is not None:
        check_importable(f"{group}._target_", target)


def check_importable(key: str, target: str) -> None:
    """Raise UserError if the module of `target`, the value of `key`, cannot be found."""
    parts = target.replace(":", ".").split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UserError(f"{key}={target} is not a path as in an import. Write package.module.Class.")
    if not _found(parts[0]):
        raise UserError(
            f"{key}={target}: no module {parts[0]} in {Path.cwd()}, and none is installed. Write the path "
            "as in an import, "
            "package.module.Class, and start mpx in the folder that holds the package."
        )


def _found(module: str) -> bool:
    if module in sys.modules:
        return True
    return find_spec(module) is not None or PathFinder.find_spec(module, [str(Path.cwd())]) is not None
