"""How this machine trains: each precision mode and each acceleration."""

import torch
from omegaconf import OmegaConf

from mpx.acceleration.choice import NO_CUDA
from mpx.machine import builds_kernels
from mpx.precision.modes import MODES, Mode, emulated, lacking
from mpx.render.table import Table, words
from mpx.settings.extras import CONF

COMPILERS = {"cuda": ("C", "gcc"), "cpu": ("C++", "g++")}  # of kernels: the language, and Debian's package


def modes(device: torch.device) -> Table:
    """A row for each choice of precision=."""
    rows = []
    for path in sorted((CONF / "precision").glob("*.yaml")):
        choice = OmegaConf.load(path)
        rows.append((path.stem, *_computed(MODES[choice.get("mode") or choice.defaults[0]], device)))
    return Table(f"precision= on {name_of(device)}", words("mode", "computes", "why"), rows)


def _computed(mode: Mode, device: torch.device) -> tuple[str, str]:
    if not emulated(mode, device, "auto"):
        return "natively", ""
    slow = f"this CPU has no instructions for {mode.narrowest.upper()}, so emulation is faster; precision.emulate=never turns it off"
    return "emulated", lacking(mode, device) or slow


def accelerations(device: torch.device) -> Table:
    cuda = device.type == "cuda"
    language, package = COMPILERS[device.type]
    no_compiler = f"no {language} compiler with Python's header files here; on Debian, apt install {package} python3-dev"
    against = {
        "CUDA graphs": None if cuda else NO_CUDA,
        "torch.compile": None if builds_kernels(device.type) else no_compiler,
        "cuDNN's search": None if cuda else NO_CUDA,
    }
    rows = [(name, "yes" if reason is None else "no", reason or "") for name, reason in against.items()]
    return Table("acceleration", words("", "here", "why not"), rows)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
