"""Check combinations of data settings; and the tokenizer of a data set whose user names none."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from mpx.errors import UserError, nearest


class Known(NamedTuple):
    """The facts about a set of images that are known before its files are read."""

    channels: int
    side: int  # pixels


IMAGES = {
    "digits": Known(1, 8),
    "mnist": Known(1, 28),
    "fashion_mnist": Known(1, 28),
    "cifar10": Known(3, 32),
}
PUBLISHED = (*IMAGES, "sst2", "wikitext2", "synthetic")  # sets that their name identifies
# of the user's own data, which the user may name
OWN_FAMILIES = ("image_folder", "text_csv", "text_file", "huggingface", "custom")
TASKS = ("classification", "regression", "multilabel", "tokens")
TRAINED = ("wordpiece", "bpe", "char")  # tokenizers that are made from the data


def family(data: Mapping[str, Any]) -> str:
    """The kind of data set, which decides the code that reads it: data.family for the user's own data,
    data.name for all others.
    """
    return data.get("family") or data["name"]


def display_name(data: Mapping[str, Any]) -> str:
    """The set's name in folders, tables and plots: data.name, or the name of the file, folder or function;
    never a path.
    """
    if data["name"] is not None:
        return data["name"]
    where = data.get("path") or data.get("_target_", "").replace(":", "/").replace(".", "/")
    name = os.path.basename(os.path.normpath(os.path.expanduser(where)))
    stem = (
        os.path.splitext(name.removesuffix(".gz"))[0]
        if "path" in data and not os.path.isdir(os.path.expanduser(where))
        else name
    )
    return re.sub(r"[^\w.-]", "_", stem) or family(data)


def check_data(data: Mapping[str, Any]) -> None:
    """Raise UserError for the first combination that cannot be loaded. data: settings that each keep their
    rule.
    """
    known = family(data)
    if known not in (*PUBLISHED, *OWN_FAMILIES):
        raise UserError(
            f"data.name={known} must be one of {', '.join(PUBLISHED)}; or give "
            f"data.family.{nearest(known, PUBLISHED)}"
        )
    if data.get("loader") == "device" and known != "image_folder":
        raise UserError(
            f"data.loader=device decodes images, which data={known} has not. Use data.loader=auto."
        )
    if known == "synthetic":
        _check_synthetic(data)
    elif known == "custom":
        _check_custom(data)
    elif known == "image_folder":
        _check_image_folder(data)
    elif known in IMAGES:
        _check_images(data)
    else:
        _check_tokens(data)


def _check_images(data: Mapping[str, Any]) -> None:
    known, size = IMAGES[data["name"]], data["image_size"]
    largest = (size or known.side) + 2 * data["pad"]
    if data["crop"] is not None and data["crop"] > largest:
        raise UserError(
            f"data.crop={data['crop']} must be at most {largest}, the image's side with "
            f"data.pad={data['pad']} on both sides."
        )
    _check_channels(data, known.channels)


def _check_image_folder(data: Mapping[str, Any]) -> None:
    if None not in (data["resize"], data["image_size"]) and data["resize"] < data["image_size"]:
        raise UserError(
            f"data.resize={data['resize']} must be at least data.image_size={data['image_size']}, which is "
            "cut out of it. "
            f"For example data.resize={data['image_size']}."
        )
    _check_channels(data, 3)


def _check_custom(data: Mapping[str, Any]) -> None:
    if data["kind"] == "lm":
        raise UserError(
            "data.kind=lm is not for data=custom. Use data.kind=image or text; or "
            "data=text_file for language modelling."
        )
    if data["task"] == "tokens" and data["kind"] != "text":
        raise UserError(
            f"data.task=tokens with data.kind={data['kind']}: only texts have tokens. Use data.kind=text."
        )


def _check_channels(data: Mapping[str, Any], channels: int) -> None:
    for key in ("mean", "std"):
        if len(data[key]) != channels:
            raise UserError(
                f"data.{key}={data[key]} does not fit images of {channels} channels. Give a "
                f"list of {channels} numbers."
            )


def _check_tokens(data: Mapping[str, Any]) -> None:
    tokenizer = data.get("tokenizer")  # wikitext2 has none: its tokens are words
    if (data["kind"], tokenizer) in (("lm", "wordpiece"), ("text", "char")):
        others = "char, bpe" if tokenizer == "wordpiece" else "wordpiece, bpe"
        raise UserError(
            f"data.tokenizer={tokenizer} is not for data={family(data)}. Use one of {others}, or the "
            "folder or hub name of an existing one."
        )


def _check_synthetic(data: Mapping[str, Any]) -> None:
    sides = 3 if data["kind"] == "image" else 1
    if len(data["shape"]) != sides:
        wanted = "[channels, height, width], e.g. [3, 224, 224]" if sides == 3 else "[tokens], e.g. [128]"
        raise UserError(f"data.shape={data['shape']} does not fit data.kind={data['kind']}: give {wanted}")
    if data["kind"] == "text" and data["vocab_size"] < data["classes"] + 2:
        raise UserError(
            f"data.vocab_size={data['vocab_size']} must be at least {data['classes'] + 2}: a token for "
            "each of data.classes="
            f"{data['classes']}, one for padding and one for the rest of a text."
        )


def pretrained(model: Mapping[str, Any]) -> str | None:
    """The folder or hub name that the model's weights come from; None for random weights."""
    name = model.get("pretrained")
    if name is None and model.get("family") == "hf":
        named = model.get("name")
        return named if named and ("/" in named or os.path.isdir(named)) else None
    return name


def usual_tokenizer(otherwise: str, *, _root_: DictConfig) -> str:
    """The resolver ${mpx.tokenizer:…} of conf/data/: a pretrained model's own tokenizer, since it only knows
    its token ids; else `otherwise`.
    """
    model = _root_.get("model")
    return (
        pretrained(model) if isinstance(model, Mapping) or OmegaConf.is_dict(model) else None
    ) or otherwise


OmegaConf.register_new_resolver("mpx.tokenizer", usual_tokenizer, replace=True)
