"""Import and make a project's LightningModule and LightningDataModule."""

import inspect
import os
import pkgutil
import sys
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.model_helpers import is_overridden

from mpx.errors import UserError
from mpx.models.arguments import accepted, unknown


def build_module(cfg: DictConfig) -> pl.LightningModule:
    """Raises UserError for a target or arguments that do not make one."""
    return _build(cfg.module, "module", pl.LightningModule)


def build_datamodule(cfg: DictConfig, module: pl.LightningModule) -> pl.LightningDataModule | None:
    """None where the module has its loaders itself. Raises UserError for a target that makes no data module, and where nothing has data."""
    if cfg.datamodule["_target_"] is not None:
        return _build(cfg.datamodule, "datamodule", pl.LightningDataModule)
    if not is_overridden("train_dataloader", module):
        raise UserError(
            f"datamodule._target_ is not set, and {type(module).__name__} has no train_dataloader. Name a LightningDataModule, as "
            "datamodule._target_=package.module.Class."
        )
    return None


def offers(stage: str, module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> bool:
    """Whether the project has a step and a loader for this stage: validation or test."""
    loader = "val_dataloader" if stage == "validation" else f"{stage}_dataloader"
    sources = [module] if datamodule is None else [datamodule, module]
    return is_overridden(f"{stage}_step", module) and any(is_overridden(loader, source) for source in sources)


def _build(cfg: DictConfig, part: str, kind: type) -> Any:
    given = OmegaConf.to_container(cfg, resolve=True)
    path = given.pop("_target_")
    kwargs = given.pop("kwargs", {}) | given
    key = f"{part}._target_={path}"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # never removed, since the project may import its neighbours later
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{key} cannot be imported from {os.getcwd()}: {error}. Write the path as in an import, package.module.Class."
        ) from error
    if not callable(target):
        raise UserError(f"{key} is a {type(target).__name__}, not a class or function that makes a {kind.__name__}.")
    allowed, parameters = accepted(target), inspect.signature(target).parameters.values()
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        for name in kwargs:
            if name not in allowed:
                raise UserError(unknown(name, path, allowed).replace("model.kwargs", part))
    for parameter in parameters:
        required = parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        if required and parameter.kind is not inspect.Parameter.VAR_POSITIONAL and parameter.name not in kwargs:
            raise UserError(f"{key} needs the argument {parameter.name}: set +{part}.{parameter.name}=…")
    made = target(**kwargs)
    if not isinstance(made, kind):
        raise UserError(f"{key} made a {type(made).__name__}; it must make a {kind.__name__}.")
    return made
