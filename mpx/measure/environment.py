"""Record the environment of a run: enough to repeat the run, and nothing that names a person or a machine.

A value that is unknown is None, and `<name>_reason` says why.
"""

import hashlib
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import mpx
from mpx.measure.devices import devices
from mpx.system.launch import all_here
from mpx.system.machine import GIB, memory_bytes, usable_cores
from mpx.system.printing import in_notebook
from mpx.system.processes import from_all, rank_and_world
from mpx.system.version import git, with_digest

STARTED = datetime.now(UTC)
# as it is when mpx is imported: files that change later are not what runs
VERSION = with_digest(Path(mpx.__file__).parent)
BOOT = Path("/proc/sys/kernel/random/boot_id")
LIBRARIES = {"torchvision": "torchvision", "lightning": "pytorch-lightning", "transformers": "transformers"}
# of pyproject.toml
SCRIPTS = {f"mpx-{name}": f"mpx.{name}" for name in ("train", "compare", "deploy", "bench", "doctor")}


def environment(used: Any = "auto") -> dict[str, Any]:
    """Versions, hardware and the command line, under the names of result.json's `environment`. used: as of
    `devices`.
    """
    software = {"mpx": VERSION, **git(), "python": platform.python_version(), "torch": torch.__version__}
    software |= _known("cuda", torch.version.cuda, "this torch was built without CUDA")
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    software |= _known("cudnn", cudnn, "no cuDNN in use")
    for name, distribution in LIBRARIES.items():
        software |= _known(name, _version(distribution), "not installed")
    software |= _known("command", command(), "started in a notebook")
    return software | _host() | devices(used) | {"started_at": STARTED.isoformat(timespec="seconds")}


def command() -> str | None:
    """The command line of this process, quoted for a shell; None in a notebook, where it would be the
    kernel's.
    """
    if in_notebook():
        return None
    if Path(sys.argv[0]).name in SCRIPTS:
        return shlex.join(["python", "-m", SCRIPTS[Path(sys.argv[0]).name], *sys.argv[1:]])
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    # `python -m package.module` puts the module's path in argv[0].
    program = ["-m", main.name.removesuffix(".__main__")] if main is not None and main.name else [sys.argv[0]]
    return shlex.join(["python", *program, *sys.argv[1:]])


def host_id() -> str | None:
    """Tells hosts of one kind apart without naming them: a hash of what Linux draws at random when it
    starts.
    """
    try:
        return hashlib.sha256(BOOT.read_bytes()).hexdigest()[:6]
    except OSError:
        return None


def host_of_all(host: str | None) -> str | None:
    """The known hosts of all processes of the run, each once, such as `0a1b2c-d3e4f5`: speed depends on each.
    host: that of this process, if known.
    """
    return "-".join(sorted(set(filter(None, from_all(host))))) or None


def host_of_rank_0(host: str | None) -> str | None:
    """As `host_of_all`, of what rank 0 knows alone: `0a1b2c-unknown` if other processes may run on other
    hosts.
    """
    return host if host is None or all_here(rank_and_world()[1]) else f"{host}-unknown"


def _known(name: str, value: Any, reason: str) -> dict[str, Any]:
    return {name: value} if value is not None else {name: None, f"{name}_reason": reason}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _host() -> dict[str, Any]:
    host: dict[str, Any] = {"os": f"{platform.system()} {platform.release()}"}
    host |= _known("cpu", _cpu_model(), "the operating system does not tell")
    host |= _known("host", host_id(), "the operating system does not tell")
    host |= {"cores": usable_cores(), "threads": torch.get_num_threads()}
    ram = memory_bytes()
    return host | _known("ram_gib", None if ram is None else ram / GIB, "the operating system does not tell")


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo") as lines:
            names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
            return next(names, None)
    except OSError:
        return platform.processor() or None
