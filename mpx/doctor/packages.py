"""What starts the jobs of a sweep or the processes of a run here, and which optional packages are installed."""

import importlib.metadata
import shutil
import tomllib

from packaging.requirements import Requirement

from mpx.render.table import Table, words
from mpx.settings import apex
from mpx.settings.extras import checkout, install
from mpx.sweep import cluster

LAUNCHER = "hydra/launcher"
ALL = "test"  # the extra that is for developers


def launchers() -> Table:
    """A row for each hydra/launcher=, and one for torchrun."""
    submitit = {"submitit_local": cluster.LOCAL, "submitit_slurm": cluster.SLURM}
    against = {"basic": None, "joblib": None} | {choice: cluster.missing(kind, choice) for choice, kind in submitit.items()}
    rows = [(f"{LAUNCHER}={name}", "yes" if reason is None else "no", reason or "") for name, reason in against.items()]
    return Table("launchers", words("", "here", "how to get it"), [*rows, _torchrun()])


def _torchrun() -> tuple[str, str, str]:
    from torch import distributed

    if not distributed.is_available():
        return "torchrun", "no", "this PyTorch was built without torch.distributed"
    return "torchrun", "yes", "" if shutil.which("torchrun") else "not on the PATH; python -m torch.distributed.run does the same"


def packages() -> Table:
    """A row for each extra of mpx, and one for NVIDIA's apex."""
    rows = []
    for extra, requirements in extras().items():
        lacking = [text for text in requirements if not _satisfied(Requirement(text))]
        state = f"{install(extra)} brings {', '.join(lacking)}" if lacking else ""
        rows.append((extra, ", ".join(Requirement(text).name for text in requirements), "no" if lacking else "yes", state))
    reason = apex.missing()
    rows.append(("", "NVIDIA's apex", "no" if reason else "yes", f"{reason}; {apex.INSTALL}" if reason else ""))
    return Table("optional packages", words("extra", "packages", "here", "how to get it"), rows)


def extras() -> dict[str, list[str]]:
    """extra -> its requirements, from the checkout, or from what an installed wheel says of itself."""
    if (folder := checkout()) is not None:
        found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    else:
        about = importlib.metadata.metadata("mpx")
        required = [Requirement(text) for text in importlib.metadata.requires("mpx") or ()]
        found = {
            extra: [f"{one.name}{one.specifier}" for one in required if one.marker and one.marker.evaluate({"extra": extra})]
            for extra in about.get_all("Provides-Extra", [])
        }
    return {extra: requirements for extra, requirements in found.items() if extra != ALL}


def _satisfied(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False
