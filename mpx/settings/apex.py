"""Whether a run can use sparsity.backend=apex: is NVIDIA's apex installed, and can it do what the other
settings ask for?
"""

from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from mpx.errors import UserError

INSTALL = "pip install -v --no-build-isolation git+https://github.com/NVIDIA/apex"
RECIPES = ("asp", "one_shot")  # recipes that prune once


def check_apex(cfg: DictConfig) -> None:
    """Raise UserError if apex cannot choose the masks of this run. Does not import apex."""
    sparsity = cfg.sparsity
    if sparsity.get("backend", "mpx") != "apex":
        return
    if sparsity.recipe not in RECIPES:
        raise UserError(
            f"sparsity.backend=apex with sparsity.recipe={sparsity.recipe}: apex's ASP prunes once. Use "
            "sparsity.recipe=asp or one_shot, "
            "or sparsity.backend=mpx."
        )
    if cfg.trainer.accelerator == "cpu":
        raise UserError(
            "sparsity.backend=apex with trainer.accelerator=cpu: apex's ASP needs a CUDA "
            "device. Use sparsity.backend=mpx."
        )
    if (reason := missing()) is not None:
        raise UserError(
            f"sparsity.backend=apex: {reason}. NVIDIA's is installed by {INSTALL}; or use "
            "sparsity.backend=mpx."
        )


def missing() -> str | None:
    """Why apex.contrib.sparsity cannot be imported; None if it can."""
    spec = find_spec("apex")
    if spec is None:
        return "import apex finds nothing"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / "contrib" / "sparsity" / "asp.py").is_file() for folder in folders):
        return None
    where = folders[0] if folders else spec.origin
    return (
        f"import apex finds {where}, which is not NVIDIA's (PyPI's package of that name is a web "
        "toolkit; pip uninstall apex)"
    )
