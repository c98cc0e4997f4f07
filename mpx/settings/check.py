"""Check a composed configuration: missing values, types and ranges, then combinations."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mpx.errors import UserError, nearest
from mpx.settings.fields import FIELDS, FREE
from mpx.settings.reachable import check_reachable
from mpx.settings.sparsity import check_sparsity

KINDS = {"image": "images", "text": "labelled text", "lm": "text for language modelling"}
# what a file of a group says about itself; the group's choice sets it
FIXED = {
    "precision.mode": "precision", "sparsity.pattern": "sparsity", "optimizer.name": "optimizer", "schedule.name": "schedule",
    "model.family": "model", "model.name": "model", "data.name": "data", "data.kind": "data",
}  # fmt: skip
SCALED = ("amp", "fp16_true", "o1", "o2", "o3")  # precision modes that have a loss scale
FREE_TO_SET = {"model.name": ("timm", "torchvision", "hf"), "data.kind": ("synthetic",)}


def check(cfg: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Raise UserError for the first value that a run could not use. Reads nothing but the configuration; looks whether what it names
    is there.

    overrides: as the user typed them.
    """
    _check_fixed(cfg, overrides)
    given = tuple(override.split("=")[0].lstrip("+") for override in overrides)
    for key, value in sorted(leaves(cfg), key=lambda leaf: not leaf[0].startswith(given)):  # before those that take the value over
        _check_value(key, value)
    _check_model_takes_data(cfg)
    _check_batch_fits_data(cfg)
    _check_trainer(cfg)
    _check_precision(cfg)
    check_sparsity(cfg, overrides)
    _check_optimizer(cfg)
    _check_crop(cfg)
    _check_image_folder(cfg)
    _check_model_sizes(cfg)
    _check_retry(cfg)
    _check_checkpoint(cfg)
    check_reachable(cfg)


def _check_fixed(cfg: DictConfig, overrides: Sequence[str]) -> None:
    typed = (override.split("=")[0].lstrip("+~") for override in overrides)
    for key in sorted(typed, key=lambda key: key in FREE_TO_SET):  # whether those may be set is said by others
        if key in FIXED and cfg[FIXED[key]].get("family", cfg.data.name) not in FREE_TO_SET.get(key, ()):
            group = FIXED[key]
            raise UserError(f"{key} belongs to the choice of {group} and is not set by itself. Use {group}=CHOICE, see --help.")


def leaves(cfg: DictConfig, *, allow_missing: bool = False) -> Iterator[tuple[str, Any]]:
    """Every (dotted key, value) with interpolations resolved; lists are values, free dictionaries are one value.

    Raises UserError for a value that is still ???, unless `allow_missing` lets it stand as such.
    """

    def walk(node: DictConfig, prefix: str) -> Iterator[tuple[str, Any]]:
        for name in node:
            key = f"{prefix}{name}"
            if OmegaConf.is_missing(node, name) and allow_missing:
                yield key, "???"
                continue
            if OmegaConf.is_missing(node, name):
                example = FIELDS[key].example if key in FIELDS else "VALUE"
                raise UserError(f"{key} is not set and has no default. Give it, for example {key}={example}.")
            value = node[name]
            if isinstance(value, DictConfig) and key not in FREE and (value or key not in FIELDS):
                yield from walk(value, key + ".")
            else:
                yield key, OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value

    yield from walk(cfg, "")


def _check_value(key: str, value: Any) -> None:
    if key in FREE:
        if not isinstance(value, dict):
            raise UserError(f"{key}={'null' if value is None else value} must be names with values. For example +{key}.width=32.")
        return
    rule = FIELDS.get(key)
    if rule is None:
        raise UserError(f"{key} is not a setting of mpx.{nearest(key, FIELDS)} See python -m mpx.train --help.")
    if not rule.fits(value):
        shown = str(value).lower() if isinstance(value, bool) else "null" if value is None else value
        too_large = rule.most is not None and type(value) is int and value > rule.most
        raise UserError(f"{key}={shown} must be {f'at most {rule.most}' if too_large else rule.allowed}. For example {key}={rule.example}.")


def _check_model_takes_data(cfg: DictConfig) -> None:
    if cfg.data.kind not in cfg.model.inputs:
        takes = " or ".join(KINDS[kind] for kind in cfg.model.inputs)
        raise UserError(
            f"model={cfg.model.name} with data={cfg.data.name}: this model takes {takes}, the data set is {KINDS[cfg.data.kind]}. "
            "Choose another model= or data=, or a task= that pairs them."
        )


def _check_batch_fits_data(cfg: DictConfig) -> None:
    samples = {"digits": 1297}.get(cfg.data.name, cfg.data.get("samples"))
    if samples is not None and cfg.data.batch_size > samples:
        raise UserError(
            f"data.batch_size={cfg.data.batch_size} must be at most the {samples} training samples of data={cfg.data.name}. "
            "Lower data.batch_size."
        )


def _check_trainer(cfg: DictConfig) -> None:
    if cfg.trainer.gradient_clip_algorithm == "value" and cfg.trainer.gradient_clip_val is None:
        raise UserError("trainer.gradient_clip_algorithm=value needs trainer.gradient_clip_val. For example trainer.gradient_clip_val=1.0.")
    if cfg.trainer.accelerator == "cpu" and cfg.trainer.cuda_graphs is True:
        raise UserError("trainer.cuda_graphs=true needs a CUDA device, but trainer.accelerator=cpu. Use trainer.cuda_graphs=auto.")
    if cfg.trainer.cuda_graphs is True and cfg.trainer.compile == "reduce-overhead":
        raise UserError(
            "trainer.cuda_graphs=true with trainer.compile=reduce-overhead: the compiler makes graphs of its own then. "
            "Use trainer.compile=default, or trainer.cuda_graphs=auto."
        )
    if cfg.trainer.accelerator == "cpu" and OmegaConf.is_list(cfg.trainer.devices):
        raise UserError(
            f"trainer.devices={list(cfg.trainer.devices)} picks GPUs, but trainer.accelerator=cpu. Use a number, as trainer.devices=2."
        )


def _check_precision(cfg: DictConfig) -> None:
    mode = cfg.precision.mode
    scale = cfg.precision.get("loss_scale")
    if scale is not None and mode not in SCALED:  # put there with +
        raise UserError(f"precision={mode} scales no loss. Leave precision.loss_scale out, or use precision=amp.")
    if scale is not None and scale.dynamic and not scale.floor <= scale.initial <= scale.ceiling:
        raise UserError(
            f"precision.loss_scale.initial={scale.initial:g} must lie between precision.loss_scale.floor={scale.floor:g} and "
            f"precision.loss_scale.ceiling={scale.ceiling:g}. Change one of them, or use precision.loss_scale.dynamic=false."
        )


def _check_optimizer(cfg: DictConfig) -> None:
    if cfg.optimizer.get("nesterov") and cfg.optimizer.momentum == 0:
        raise UserError("optimizer.nesterov=true needs optimizer.momentum above 0. Add optimizer.nesterov=false.")


def _check_crop(cfg: DictConfig) -> None:
    if cfg.data.get("crop") is not None and cfg.data.augment == "none":
        raise UserError(
            f"data.crop={cfg.data.crop} is a random crop, and data.augment=none takes none. Use data.augment=crop_flip or crop, or "
            "data.crop=null."
        )


def _check_image_folder(cfg: DictConfig) -> None:
    if cfg.data.name != "image_folder":
        return
    if cfg.data.augment == "crop":
        raise UserError("data.augment=crop is not for data=image_folder. Use data.augment=crop_flip or none.")
    if cfg.data.loader == "resident":
        raise UserError(
            "data.loader=resident is not for data=image_folder, whose images are read one by one. Use data.loader=workers or auto."
        )


def _check_model_sizes(cfg: DictConfig) -> None:
    model = cfg.model
    if model.family == "bert" and model.pretrained is None and model.hidden_size % model.num_heads:
        raise UserError(
            f"model.hidden_size={model.hidden_size} must be a multiple of model.num_heads={model.num_heads}. "
            f"For example model.hidden_size={model.num_heads * max(1, model.hidden_size // model.num_heads)}."
        )
    if model.family == "lstm" and cfg.data.kind == "lm":
        if model.bidirectional:
            raise UserError(
                "model.bidirectional=true on language modelling data would read the words to predict. Use model.bidirectional=false."
            )
        if model.tie_weights and model.embedding_size not in (None, model.hidden_size):
            raise UserError(
                f"model.tie_weights=true needs model.embedding_size={model.embedding_size} to equal model.hidden_size={model.hidden_size}. "
                "Use model.embedding_size=null or model.tie_weights=false."
            )


def _check_retry(cfg: DictConfig) -> None:
    if cfg.retry_failed and cfg.if_exists not in ("auto", "resume"):
        raise UserError(f"retry_failed=true and if_exists={cfg.if_exists} both say what to do with a failed run. Leave one of them out.")


def _check_checkpoint(cfg: DictConfig) -> None:
    if cfg.ckpt_path is None:
        return
    if cfg.if_exists == "resume":
        raise UserError("ckpt_path and if_exists=resume both say where to continue. Give one of them.")
    if not os.path.isfile(cfg.ckpt_path):  # Path.is_file raises where a name is too long or a folder may not be read
        raise UserError(f"ckpt_path={cfg.ckpt_path} is not a file. Give the path of a .ckpt that mpx wrote, or ckpt_path=null.")
