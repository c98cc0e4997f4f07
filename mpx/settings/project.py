"""The user's own project: `module._target_=` names its LightningModule, `datamodule._target_=` its
LightningDataModule.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.settings.reachable import check_importable
from mpx.settings.values import check_value, key_of

CHOSEN_BY = "module._target_"
CHOICE = "project=custom"
PARTS = ("module", "datamodule")  # their further keys are arguments of the constructors
# settings that a project replaces by its own code
THEIRS = ("model", "data", "optimizer", "schedule", "task", "label_smoothing")
NOT_FOR_THEM = {  # key -> (values that a project may have, what to do instead)
    "trainer.ema_decay": ((None,), "add lightning's WeightAveraging in the module's configure_callbacks"),
    "trainer.compile": (("auto", "off"), "call torch.compile in the module"),
    "trainer.cuda_graphs": (("auto", False), "its training_step may do other things at each step"),
    "sparsity.backend": (("mpx", None), "use sparsity.backend=mpx"),
    "sparsity.permute": ((False, None), "the order of its channels may matter outside the module"),
    "sparsity.sensitivity": ((False, None), "mpx does not know its loss apart from its steps"),
}


def is_project(cfg: Mapping[str, Any]) -> bool:
    return "module" in cfg


def with_project(words: Sequence[str]) -> list[str]:
    """The words of a command line. If they name a module but no choice of project, CHOICE is added."""
    naming = [key_of(word) == CHOSEN_BY for word in words]
    if any(naming):
        refuse_theirs(words)  # before Hydra misses the key
    if not any(naming) or "project" in map(key_of, words):
        return list(words)
    place = naming.index(True)  # beside it, since argparse takes no settings on both sides of an option
    return [*words[:place], CHOICE, *words[place:]]


def names(cfg: Mapping[str, Any]) -> dict[str, str]:
    """The names of model and data set in folders and tables: their import paths."""
    return {"model": cfg["module"]["_target_"], "data": cfg["datamodule"]["_target_"] or "own"}


def refuse_theirs(words: Iterable[str]) -> None:
    """Raise UserError for the first setting that a project brings itself."""
    words = list(words)
    chosen = next((word.lstrip("+") for word in words if word.lstrip("+").startswith(CHOSEN_BY)), CHOSEN_BY)
    for word in words:
        if (part := key_of(word).partition(".")[0]) in THEIRS:
            raise UserError(
                f"{word}: the module of {chosen} brings its own {part}. Leave it out; arguments of its "
                "constructor are "
                "+module.NAME=VALUE, those of the data module +datamodule.NAME=VALUE."
            )


def check_project(cfg: DictConfig, overrides: Iterable[str]) -> None:
    """Raise UserError for the first setting that a project brings itself or cannot have. overrides: as the
    user typed them.
    """
    refuse_theirs(overrides)
    for part in PARTS:
        key, target = f"{part}._target_", cfg[part]["_target_"]
        check_value(key, target)
        if target is not None:
            check_importable(key, target)
    for key, (allowed, instead) in NOT_FOR_THEM.items():
        group, _, name = key.rpartition(".")
        value = (cfg[group] if group else cfg).get(name)
        if value not in allowed:
            raise UserError(
                f"{key}={value} is not possible with a module of your own: {instead}. Leave {key} out."
            )
