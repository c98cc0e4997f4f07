"""Whether sparsity.backend=apex can be used as asked: which apex is installed, and what it has no answer to."""

from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from mpx.errors import UserError

INSTALL = "pip install -v --no-build-isolation git+https://github.com/NVIDIA/apex"
RECIPES = ("asp", "one_shot")  # those that prune once


def check_apex(cfg: DictConfig) -> None:
    """Raise UserError for the first reason why a run could not let apex choose its masks. Imports nothing of apex."""
    sparsity = cfg.sparsity
    if sparsity.get("backend", "mpx") != "apex":
        return
    if sparsity.recipe not in RECIPES:
        raise UserError(
            f"sparsity.backend=apex with sparsity.recipe={sparsity.recipe}: apex's ASP prunes once. Use sparsity.recipe=asp or one_shot, "
            "or sparsity.backend=mpx."
        )
    if cfg.trainer.accelerator == "cpu":
        raise UserError("sparsity.backend=apex with trainer.accelerator=cpu: apex's ASP needs a CUDA device. Use sparsity.backend=mpx.")
    if sparsity.get("permute") and cfg.trainer.ema_decay is not None:
        raise UserError(
            "sparsity.backend=apex with sparsity.permute=true reorders no averages of weights. Use trainer.ema_decay=null, or "
            "sparsity.backend=mpx."
        )
    if (missing := _missing()) is not None:
        raise UserError(f"sparsity.backend=apex: {missing}. NVIDIA's is installed by {INSTALL}; or use sparsity.backend=mpx.")


def _missing() -> str | None:
    """Why there is no apex.contrib.sparsity here; None if there is."""
    spec = find_spec("apex")
    if spec is None:
        return "import apex finds nothing"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / "contrib" / "sparsity" / "asp.py").is_file() for folder in folders):
        return None
    where = folders[0] if folders else spec.origin
    return f"import apex finds {where}, which is not NVIDIA's (PyPI's package of that name is a web toolkit; pip uninstall apex)"
