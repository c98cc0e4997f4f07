"""Check a composed configuration: each value against its rule, then combinations."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.settings.choices import FIXED, SETTABLE
from mpx.settings.data import TRAINED, check_data, family, pretrained
from mpx.settings.fields import SEEDS_EACH
from mpx.settings.model import check_model
from mpx.settings.project import check_project, is_project
from mpx.settings.reachable import check_device, check_files, check_logger, check_target
from mpx.settings.sparsity import check_sparsity
from mpx.settings.values import check_value, key_of, leaves

# metrics that should fall, by their names
OF_ERROR = "perplexity|ppl|nll|cross_entropy|mse|rmse|mae|mape|wer|cer|error"
FALLS = re.compile(
    rf"(^|[/.])(([^/]+[_.])?loss|((train|val|valid|validation|dev|test)_)?({OF_ERROR}))(_epoch|_step)?(/dataloader_idx_\d+)?$",
    re.IGNORECASE,
)
NEGATED = re.compile(r"(^|[/_.])(neg|negated|negative|minus|inv|inverse)[/_.]", re.IGNORECASE)


def check(cfg: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Raise UserError for the first value that a run could not use.

    Imports nothing heavy and opens no file; it only looks whether the files, modules and devices that `cfg`
    names exist. overrides: as the user typed them.
    """
    typed = list(map(key_of, overrides))
    _check_fixed(cfg, typed)
    if is_project(cfg):
        check_project(cfg, overrides)
    _check_values(cfg, typed)
    if is_project(cfg):
        check_goal(cfg.metric, cfg.metric_goal)
    else:
        check_model(cfg.model, cfg.data.kind, cfg.data.get("task", "classification"), family(cfg.data))
        check_data(cfg.data)
        _check_tokenizer(cfg)
        _check_optimizer(cfg)
    _check_trainer(cfg)
    if (scale := cfg.precision.get("loss_scale")) is not None:
        check_scale(scale)
    check_sparsity(cfg, typed)
    if cfg.get("until") is not None:
        check_looks(cfg.until)
    _check_checkpoint(cfg)
    if not is_project(cfg):
        check_files(cfg.data)
        check_target("model", cfg.model)
        check_target("data", cfg.data)
    check_logger(cfg.logger["_target_"])
    check_device(cfg)


def _check_fixed(cfg: DictConfig, typed: Sequence[str]) -> None:
    # a key that no choice lets the user set is named first
    for key in sorted(typed, key=lambda key: key in SETTABLE):
        # a group that a project of the user's own does not have
        if (group := FIXED.get(key)) is None or group not in cfg:
            continue
        if cfg[group].get("family", cfg.data.name if "data" in cfg else None) not in SETTABLE.get(key, ()):
            raise UserError(
                f"{key} belongs to the choice of {group} and is not set by itself. Use "
                f"{group}=CHOICE, see --help."
            )


def _check_values(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Typed keys come first, so that an error names the key that the user typed and not one that takes its
    value over.
    """
    for key, value in sorted(leaves(cfg), key=lambda leaf: not leaf[0].startswith(tuple(typed))):
        check_value(key, value)


def _check_trainer(cfg: DictConfig) -> None:
    if cfg.trainer.cuda_graphs is True and (reason := against_graphs(cfg.trainer)) is not None:
        raise graphs_refused(reason)


def against_graphs(trainer: DictConfig) -> str | None:
    """Why CUDA graphs are not possible with these settings of the trainer; None where the settings allow
    them.
    """
    if trainer.accelerator == "cpu":
        return "trainer.accelerator=cpu"
    if trainer.compile == "reduce-overhead":
        return "trainer.compile=reduce-overhead makes its own"
    if trainer.accumulate_grad_batches > 1:
        return "trainer.accumulate_grad_batches is above 1, so that not all batches do the same"
    return None


def graphs_refused(reason: str) -> UserError:
    return UserError(f"trainer.cuda_graphs=true is not possible: {reason}. Use trainer.cuda_graphs=auto.")


def check_scale(scale: Mapping[str, Any], prefix: str = "precision.loss_scale.") -> None:
    """Raise UserError for a first scale that lies outside of the scales allowed. prefix: of the keys in
    errors.
    """
    if scale["dynamic"] and not scale["floor"] <= scale["initial"] <= scale["ceiling"]:
        raise UserError(
            f"{prefix}initial={scale['initial']:g} must lie between {prefix}floor={scale['floor']:g} and "
            f"{prefix}ceiling={scale['ceiling']:g}. Change one of them, or use {prefix}dynamic=false."
        )


def _check_optimizer(cfg: DictConfig) -> None:
    if cfg.optimizer.get("nesterov") and cfg.optimizer.momentum == 0:
        raise UserError(
            "optimizer.nesterov=true needs optimizer.momentum above 0. Add optimizer.nesterov=false."
        )


def _check_tokenizer(cfg: DictConfig) -> None:
    if cfg.data.get("tokenizer") in TRAINED and (model := pretrained(cfg.model)) is not None:
        raise UserError(
            f"data.tokenizer={cfg.data.tokenizer} is trained on this data, and its token ids mean nothing "
            f"to the pretrained {model}. "
            "Leave it out: the model brings its own tokenizer."
        )


def check_looks(until: Mapping[str, Any]) -> None:
    """A sweep in rounds checks its plan before its first job, too, and a comparison the plan that a record
    names.
    """
    for key, value in leaves({"until": until}):
        check_value(key, value)
    if until["max_seeds"] < SEEDS_EACH * until["looks"]:
        raise UserError(
            f"until.max_seeds={until['max_seeds']} is less than {SEEDS_EACH} seeds for each of "
            f"until.looks={until['looks']}. Use "
            f"until.max_seeds={SEEDS_EACH * until['looks']}, or fewer looks."
        )


def _check_checkpoint(cfg: DictConfig) -> None:
    # Path.is_file raises where a name is too long or a folder may not be read
    if cfg.ckpt_path is not None and not os.path.isfile(cfg.ckpt_path):
        raise UserError(
            f"ckpt_path={cfg.ckpt_path} is not a file. Give the path of a .ckpt that mpx "
            "wrote, or ckpt_path=null."
        )


def falls(metric: str) -> bool:
    """Whether the name says that lower values are better."""
    return FALLS.search(metric) is not None and NEGATED.search(metric) is None


def check_goal(metric: str | None, goal: str) -> None:
    """Raise UserError for metric_goal=max, the default, and a metric that falls: the worst epoch would be the
    best one.
    """
    if metric is not None and goal == "max" and falls(metric):
        raise UserError(
            f"metric={metric} should fall, but metric_goal=max. Use metric_goal=min, or a name "
            "such as neg_loss."
        )
