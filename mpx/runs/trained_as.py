"""The setting that a checkpoint was trained in. A run that trains no step of its own has the results of that setting."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.runs.name import comparable

AFTER_TRAINING = ("data.tta", "trainer.limit_val_batches", "trainer.limit_test_batches")


def setting_of(cfg: DictConfig) -> dict[str, Any]:
    """Every setting that training depends on, as dotted keys."""
    return {key: value for key, value in comparable(cfg).items() if key not in AFTER_TRAINING} | {"seed": cfg.seed}


def settings_unlike(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The settings of a checkpoint that this run has not: its earlier steps were trained with them. theirs: {} if it does not say.

    A dense checkpoint is the dense phase of a run that prunes it. Keys that only one of the two has may be of another version of mpx.
    """
    dense = theirs.get("sparsity.pattern") == "dense"
    differing = (key for key in sorted(theirs.keys() & ours.keys()) if theirs[key] != ours[key])
    return {key: theirs[key] for key in differing if not (dense and key.startswith("sparsity."))}


def refuse_other_setting(path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise UserError, which names the key, where the checkpoint at `path` has all steps of a run in another setting.

    theirs: {} if the checkpoint does not say.
    """
    pruned_afterwards = theirs.get("sparsity.pattern") == "dense" and ours.get("sparsity.recipe") == "one_shot"
    both_first = sorted(theirs.keys() | ours.keys(), key=lambda key: (key not in theirs or key not in ours, key))
    for key in both_first if theirs else ():
        if theirs.get(key) != ours.get(key) and not (pruned_afterwards and key.startswith("sparsity.")):
            raise UserError(
                f"ckpt_path={path} was trained with {key}={theirs.get(key)}, this command has {key}={ours.get(key)} and no step left to "
                "train with it. Raise trainer.max_epochs or trainer.max_steps, or leave ckpt_path out."
            )
