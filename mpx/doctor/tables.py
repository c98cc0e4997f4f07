"""What this machine has, trains and serves, and why not the rest; each in a table."""

import importlib.metadata
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from torch.backends import cusparselt

from mpx.acceleration.decide import NO_CUDA
from mpx.deploy import backends
from mpx.deploy.build import no_instructions
from mpx.deploy.kernels import no_2of4
from mpx.measure.devices import why_no_gpu
from mpx.measure.environment import environment
from mpx.precision.modes import MODES, emulated, lacking, lacks_instructions
from mpx.render.table import Table, words
from mpx.settings.choices import CONF, install
from mpx.settings.deploy import FORMATS
from mpx.settings.sparsity import APEX, apex_missing
from mpx.sparsity.kernels import unsupported_device, unsupported_pattern
from mpx.system.machine import GIB, builds_kernels
from mpx.system.printing import how_many
from mpx.system.version import version

LIBRARIES = {  # name in the environment of a record: its name here
    "torch": "PyTorch",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "torchvision": "torchvision",
    "lightning": "Lightning",
    "transformers": "transformers",
}
COMPILERS = {"cuda": ("C", "gcc"), "cpu": ("C++", "g++")}  # of kernels: the language, and Debian's package
OUTPUTS = Path("outputs")
FOR_DEVELOPERS = "test"  # an extra


def tables() -> list[Table]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return [machine(), modes(device), accelerations(device), patterns(device), formats(device), packages()]


def machine() -> Table:
    """Hardware, drivers, versions and space for runs."""
    known = environment()
    no_kernels = "– (this PyTorch was built without it)"
    folder = next(folder for folder in (OUTPUTS.absolute(), *OUTPUTS.absolute().parents) if folder.exists())
    rows = [
        ("Python", f"{known['python']} on {known['os']}"),
        *_gpus(known),
        (
            "CPU",
            f"{_known(known, 'cpu')}; {how_many(known['cores'], 'core')}, threads of PyTorch: "
            f"{known['threads']}",
        ),
        ("RAM", _known(known, "ram_gib", " GiB")),
        *((label, _known(known, name)) for name, label in LIBRARIES.items()),
        ("cuSPARSELt", str(cusparselt.version()) if cusparselt.is_available() else no_kernels),
        ("free disk", f"{shutil.disk_usage(folder).free / GIB:.1f} GiB for {OUTPUTS}/"),
    ]
    return Table(version(), words("", ""), rows)


def _known(known: Mapping[str, Any], name: str, unit: str = "") -> str:
    value = known[name]
    if value is None:
        return f"– ({known[f'{name}_reason']})"
    return f"{value:.1f}{unit}" if isinstance(value, float) else f"{value}{unit}"


def _gpus(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if known["device"] is None:
        yield "GPU", f"– ({why_no_gpu()})"
        return
    for i, (name, capability) in enumerate(zip(known["device"], known["compute_capability"], strict=True)):
        gib = torch.cuda.get_device_properties(i).total_memory / GIB
        yield f"GPU {i}", f"{name}, {gib:.1f} GiB, compute capability {capability}"
    yield "GPU driver", _known(known, "driver")


def modes(device: torch.device) -> Table:
    """A row for each choice of precision=."""
    rows = []
    for name, choice in _choices("precision"):
        mode = MODES[choice.get("mode") or choice.defaults[0]]
        slow = f"{lacks_instructions(mode.narrowest)}, so emulation is faster"
        why = lacking(mode, device) or f"{slow}; precision.emulate=never turns it off"
        rows.append((name, "emulated", why) if emulated(mode, device, "auto") else (name, "natively", ""))
    return Table(f"precision= on {_name(device)}", words("mode", "computes", "why"), rows)


def accelerations(device: torch.device) -> Table:
    no_cuda = None if device.type == "cuda" else NO_CUDA
    language, package = COMPILERS[device.type]
    no_compiler = (
        f"no {language} compiler with Python's header files here; on Debian, apt install "
        f"{package} python3-dev"
    )
    compiler = None if builds_kernels(device.type) else no_compiler
    against = {"CUDA graphs": no_cuda, "torch.compile": compiler, "cuDNN's search": no_cuda}
    rows = [(name, "yes" if reason is None else "no", reason or "") for name, reason in against.items()]
    return Table("acceleration", words("", "here", "why not"), rows)


def patterns(device: torch.device) -> Table:
    """A row for each choice of sparsity=. Masks are plain products, so every device trains with every
    pattern.
    """
    rows = [(name, "yes", *_sparse(choice.pattern, device)) for name, choice in _choices("sparsity")]
    return Table(
        f"sparsity= on {_name(device)}", words("pattern", "trains", "sparse kernels serve", "why not"), rows
    )


def _sparse(pattern: str, device: torch.device) -> tuple[str, str]:
    """(formats in which sparse kernels serve the pattern, why not in the others)."""
    if pattern == "dense":
        return "", ""
    if (reason := unsupported_pattern(pattern) or unsupported_device(device)) is not None:
        return "–", reason
    return _split({fmt: no_2of4(fmt, device) for fmt in FORMATS if no_instructions(fmt, device) is None})


def formats(device: torch.device) -> Table:
    """A row for each format= of mpx.deploy."""
    rows = []
    for fmt in FORMATS:
        reason = no_instructions(fmt, device)
        rows.append((fmt, *(("–", reason) if reason else _split(backends.lacking(fmt, device)))))
    return Table(f"mpx.deploy on {_name(device)}", words("format=", "backend=", "why not the others"), rows)


def packages() -> Table:
    """A row for each extra of mpx, and one for NVIDIA's apex."""
    rows = []
    for extra, requirements in extras().items():
        absent = [text for text in requirements if not _satisfied(Requirement(text))]
        state = f"{install(extra)} brings {', '.join(absent)}" if absent else ""
        names = ", ".join(Requirement(text).name for text in requirements)
        rows.append((extra, names, "no" if absent else "yes", state))
    reason = apex_missing()
    rows.append(("", "NVIDIA's apex", "no" if reason else "yes", f"{reason}; {APEX}" if reason else ""))
    return Table("optional packages", words("extra", "packages", "here", "how to get it"), rows)


def extras() -> dict[str, list[str]]:
    """extra -> its requirements, as mpx was installed; none where it was not."""
    try:
        about = importlib.metadata.metadata("mpx")
    except importlib.metadata.PackageNotFoundError:
        return {}
    required = [Requirement(text) for text in about.get_all("Requires-Dist", [])]
    return {
        extra: [
            f"{one.name}{one.specifier}"
            for one in required
            if one.marker is not None and one.marker.evaluate({"extra": extra})
        ]
        for extra in about.get_all("Provides-Extra", [])
        if extra != FOR_DEVELOPERS
    }


def _satisfied(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def _choices(group: str) -> Iterator[tuple[str, Any]]:
    """The files of a group of conf/."""
    for path in sorted((CONF / group).glob("*.yaml")):
        yield path.stem, OmegaConf.load(path)


def _split(reasons: Mapping[str, str | None]) -> tuple[str, str]:
    """(names without a reason, the reasons with the names that they concern)."""
    against: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason is not None:
            against.setdefault(reason, []).append(name)
    usable = [name for name, reason in reasons.items() if reason is None]
    return ", ".join(usable) or "–", "; ".join(
        f"{', '.join(names)}: {reason}" for reason, names in against.items()
    )


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
