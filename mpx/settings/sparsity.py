"""Check combinations of sparsity settings; and whether NVIDIA's apex is installed, for
sparsity.backend=apex.
"""

import os
from collections.abc import Sequence, Set
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from mpx.errors import UserError

PHASED = ("asp", "gradual", "sr_ste")  # recipes with a dense phase and a sparse phase after it
RECIPES_OF = {  # key -> the recipes that read it
    "start": PHASED,
    "start_step": PHASED,
    "end": ("gradual",),
    "decay": ("sr_ste",),
}
APEX = "pip install -v --no-build-isolation git+https://github.com/NVIDIA/apex"
PRUNING_ONCE = ("asp", "one_shot")  # recipes that apex can do


def check_sparsity(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Raise UserError for the first combination that a run could not use. typed: the keys of the command
    line.
    """
    sparsity = cfg.sparsity
    if sparsity.pattern == "dense":
        return
    own = {key.removeprefix("sparsity.") for key in typed if key.startswith("sparsity.")}
    check_recipe(sparsity, own)
    _check_dense_checkpoint(cfg)
    _check_apex(cfg)


def check_recipe(sparsity: DictConfig, given: Set[str]) -> None:
    """Raise UserError for a key that the recipe does not read, or values that do not fit together. given:
    keys without `sparsity.`
    """
    _check_read_by_recipe(sparsity, given)
    if sparsity.recipe == "gradual" and sparsity.start_step is None and sparsity.end < sparsity.start:
        raise UserError(
            f"sparsity.end={sparsity.end:g} must be at least "
            f"sparsity.start={sparsity.start:g}. For example sparsity.end=0.9."
        )
    if sparsity.pattern == "nofm" and sparsity.n >= sparsity.m:
        raise UserError(
            f"sparsity.n={sparsity.n} must be below sparsity.m={sparsity.m}. For example "
            f"sparsity.n={sparsity.m // 2}."
        )


def _check_read_by_recipe(sparsity: DictConfig, given: Set[str]) -> None:
    for key in (key for key in RECIPES_OF if key in given):
        if sparsity.recipe not in RECIPES_OF[key] and sparsity[key] is not None:
            recipes = " or ".join(f"sparsity.recipe={recipe}" for recipe in RECIPES_OF[key])
            raise UserError(
                f"sparsity.{key} has no meaning for sparsity.recipe={sparsity.recipe}. Leave "
                f"it out, or use {recipes}."
            )


def nothing_to_train(sparsity: DictConfig) -> bool:
    """Whether a dense checkpoint is pruned in one shot, without a dense phase or fine-tuning."""
    return sparsity.pattern != "dense" and sparsity.recipe == "one_shot" and sparsity.dense_ckpt is not None


def _check_dense_checkpoint(cfg: DictConfig) -> None:
    path = cfg.sparsity.dense_ckpt
    if path is None:
        return
    if not os.path.isfile(path):
        raise UserError(
            f"sparsity.dense_ckpt={path} is not a file. Give a checkpoint of a dense run, or "
            "sparsity.dense_ckpt=null."
        )
    if cfg.ckpt_path is not None:
        raise UserError("ckpt_path and sparsity.dense_ckpt both bring weights. Give one of them.")


def _check_apex(cfg: DictConfig) -> None:
    """Raise UserError if apex cannot choose the masks of this run. Does not import apex."""
    sparsity = cfg.sparsity
    if sparsity.get("backend", "mpx") != "apex":
        return
    if sparsity.recipe not in PRUNING_ONCE:
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
    if (reason := apex_missing()) is not None:
        raise UserError(
            f"sparsity.backend=apex: {reason}. NVIDIA's is installed by {APEX}; or use sparsity.backend=mpx."
        )


def apex_missing() -> str | None:
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
