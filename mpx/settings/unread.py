"""Refuse settings that the user types and no part of the run reads, since the run would look like another setting.

sparsity.py and check.py refuse those of sparsity and of the loss scale.
"""

import os
from collections.abc import Sequence

from omegaconf import DictConfig

from mpx.environment_variables import report_file
from mpx.errors import UserError
from mpx.settings.data import MIN_VOCABULARY, family
from mpx.settings.model import KINDS

OF_KINDS = {  # key -> the kinds of data for which a run reads it
    "model.embedding_size": ("text", "lm"), "model.tie_weights": ("lm",), "model.patch": ("image",),
    "data.classes": ("image", "text"), "data.vocab_size": ("text", "lm"), "data.pad_id": ("text",),
}  # fmt: skip
DECIDED_BY_FOLDER = (
    *("model.num_layers", "model.hidden_size", "model.num_heads", "model.intermediate_size"),
    *("model.hidden_dropout", "model.attention_dropout", "model.name"),
)  # of a pretrained model


def check_unread(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Raise UserError for the first key of `typed`, those of the command line, that a run of `cfg` does not read. Other jobs of a sweep may
    read it."""
    _check_two_rates(cfg, typed)
    if report_file() is not None:
        return
    _check_rate(cfg, typed)
    _check_data(cfg.data, typed)
    _check_pretrained(cfg.model, typed)
    if "schedule.restart" in typed and cfg.schedule.restart is not None and cfg.schedule.name == "constant" and cfg.schedule.warmup == 0:
        raise UserError(
            f"schedule.restart={cfg.schedule.restart:g} starts the warm-up again, and schedule=constant has none. Leave it out, or add "
            "schedule.warmup=0.05."
        )


def _check_data(data: DictConfig, typed: Sequence[str]) -> None:
    for key in typed:
        if data.kind not in OF_KINDS.get(key, (data.kind,)):
            raise UserError(f"{key} has no meaning for {KINDS[data.kind]}, which data={family(data)} has. Leave it out.")
    if "data.pad" in typed and data.pad > 0 and data.get("augment") == "none":
        raise UserError(
            f"data.pad={data.pad} is for a random crop, and data.augment=none takes none. Use data.augment=crop, or data.pad=0."
        )
    if "data.vocab_size" in typed and data.get("tokenizer", "bpe") not in MIN_VOCABULARY:
        raise UserError(
            f"data.vocab_size={data.vocab_size} is for a tokenizer of a chosen size, and data.tokenizer={data.tokenizer} has its own. "
            "Leave it out, or use data.tokenizer=bpe."
        )
    if "data.classes" in typed and data.get("task") in ("regression", "multilabel"):
        raise UserError(f"data.classes={data.classes} is for classes, and data.task={data.task} has none. Leave it out.")
    if "data.val_share" in typed and family(data) == "image_folder" and os.path.isdir(os.path.join(os.path.expanduser(data.path), "test")):
        raise UserError(
            f"data.val_share={data.val_share:g} is for image folders without test/, and data.path={data.path} has one, so that val/ is for "
            "validation. Leave it out."
        )
    if "model.pool" in typed and data.get("task") == "tokens":
        raise UserError("model.pool makes one output from all tokens, and data.task=tokens needs one for each. Leave it out.")


def _check_pretrained(model: DictConfig, typed: Sequence[str]) -> None:
    """Refuse what the folder of a pretrained model decides."""
    if model.get("pretrained") is not None:
        for key in typed:
            if key in DECIDED_BY_FOLDER:
                raise UserError(f"{key} has no effect on model.pretrained={model.pretrained}, which has its own. Leave it out.")


def _check_rate(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Refuse a model's learning rate for another optimizer."""
    rates, used = [key for key in typed if key.startswith("model.lr.")], f"model.lr.{cfg.optimizer.name}"
    if rates and used not in rates:
        raise UserError(f"{rates[0]} is for another optimizer than optimizer={cfg.optimizer.name}. Use {used}, or leave it out.")


def _check_two_rates(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Refuse a model's learning rate that optimizer.lr= replaces. This is the job that would take it, so a sweep is no excuse."""
    used = f"model.lr.{cfg.optimizer.name}"
    if used in typed and cfg.optimizer.lr != (lr := cfg.model.lr[cfg.optimizer.name]):
        raise UserError(f"optimizer.lr={cfg.optimizer.lr:g} takes the place of {used}={lr:g}. Give one of them.")
