"""Import and make a project's LightningModule and LightningDataModule."""

from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.model_helpers import is_overridden

from mpx.errors import UserError
from mpx.settings import target


def build_module(module: DictConfig) -> pl.LightningModule:
    """Raises UserError for a target or arguments that do not make one that can be trained."""
    made = _build(module, "module", pl.LightningModule)
    for name in ("training_step", "configure_optimizers"):
        if not is_overridden(name, made):
            raise UserError(f"module._target_={module['_target_']} has no {name}. Add one, or name another class.")
    return made


def build_datamodule(datamodule: DictConfig, module: pl.LightningModule) -> pl.LightningDataModule | None:
    """None where the module has its loaders itself. Raises UserError for a target that makes no data module, and where nothing has data."""
    if datamodule["_target_"] is not None:
        return _build(datamodule, "datamodule", pl.LightningDataModule)
    if not is_overridden("train_dataloader", module):
        raise UserError(
            f"datamodule._target_ is not set, and {type(module).__name__} has no train_dataloader. Name a LightningDataModule, as "
            "datamodule._target_=package.module.Class."
        )
    return None


def offers(stage: str, module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> bool:
    """Whether the project has a step and a loader for this stage: validation or test."""
    loader = "val_dataloader" if stage == "validation" else f"{stage}_dataloader"
    source = module if datamodule is None else datamodule  # beside which Lightning takes no loader of the module's
    return is_overridden(f"{stage}_step", module) and is_overridden(loader, source)


def _build(settings: DictConfig, part: str, kind: type) -> Any:
    given = OmegaConf.to_container(settings, resolve=True)
    made = target.build(f"{part}._target_", given, part)
    path = given.pop("_target_")
    if not isinstance(made, kind):
        raise UserError(f"{part}._target_={path} made a {type(made).__name__}; it must make a {kind.__name__}.")
    if given and type(made).__init__ is kind.__init__:  # which takes any argument, and drops it
        raise UserError(f"{part}.{min(given)} is not an argument of {path}, which has no __init__ of its own. Leave it out.")
    return made
