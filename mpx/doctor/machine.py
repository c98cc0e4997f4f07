"""Hardware, drivers, versions and space for runs; whether the libraries without which nothing runs can be imported."""

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpx.machine import GIB
from mpx.printing import how_many
from mpx.render.table import Table, words
from mpx.version import version

TORCH = "pip install --force-reinstall 'torch>=2.11' 'torchvision>=0.26' installs two that fit each other"
NEEDED = {"torch": TORCH, "torchvision": TORCH, "pytorch_lightning": "pip install --force-reinstall pytorch-lightning reinstalls it"}
LIBRARIES = {  # name in the environment of a record: its name here
    "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "torchvision": "torchvision", "lightning": "Lightning",
    "transformers": "transformers",
}  # fmt: skip
OUTPUTS = Path("outputs")


def broken() -> str | None:
    """Why mpx cannot run here at all, and what mends that, in one line; None if it can."""
    for name, remedy in NEEDED.items():
        try:
            importlib.import_module(name)
        except Exception as error:  # builds that do not fit each other fail in many ways
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return f"import {name} fails ({reason[:300]}). {remedy}."
    return None


def machine() -> Table:
    from mpx.measure.environment import environment

    found = environment()
    rows = [("Python", f"{found['python']} on {found['os']}"), *_gpus(found)]
    rows += [
        ("CPU", f"{_known(found, 'cpu')}; {how_many(found['cores'], 'core')}, threads of PyTorch: {found['threads']}"),
        ("RAM", _ram(found)),
    ]
    rows += [(label, _known(found, name)) for name, label in LIBRARIES.items()] + [("cuSPARSELt", _cusparselt()), ("free disk", _disk())]
    return Table(version(), words("", ""), rows)


def _known(found: dict[str, Any], name: str) -> str:
    return str(found[name]) if found[name] is not None else f"– ({found[f'{name}_reason']})"


def _gpus(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    import torch

    from mpx.measure.devices import why_no_gpu

    if found["device"] is None:
        yield "GPU", f"– ({why_no_gpu()})"
        return
    for i, (name, capability) in enumerate(zip(found["device"], found["compute_capability"], strict=True)):
        gib = torch.cuda.get_device_properties(i).total_memory / GIB
        yield f"GPU {i}", f"{name}, {gib:.1f} GiB, compute capability {capability}"
    yield "GPU driver", _known(found, "driver")


def _ram(found: dict[str, Any]) -> str:
    return f"{found['ram_gib']:.1f} GiB" if found["ram_gib"] is not None else _known(found, "ram_gib")


def _cusparselt() -> str:
    from torch.backends import cusparselt

    return str(cusparselt.version()) if cusparselt.is_available() else "– (this PyTorch was built without it)"


def _disk() -> str:
    """The room for the folder in which runs are written, or will be."""
    there = next(folder for folder in (OUTPUTS.absolute(), *OUTPUTS.absolute().parents) if folder.exists())
    return f"{shutil.disk_usage(there).free / GIB:.1f} GiB for {OUTPUTS}/"
