"""Check combinations of data settings."""

import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mpx.errors import UserError, nearest
from mpx.system.machine import GIB, memory_bytes


class Known(NamedTuple):
    """The facts about a set of images that are known before its files are read."""

    train: int  # samples of the published training set (digits: without the samples that mpx holds out)
    channels: int
    side: int  # pixels


IMAGES = {
    "digits": Known(1297, 1, 8),
    "mnist": Known(60_000, 1, 28),
    "fashion_mnist": Known(60_000, 1, 28),
    "cifar10": Known(50_000, 3, 32),
}
PUBLISHED = (*IMAGES, "sst2", "wikitext2", "synthetic")  # sets that their name identifies
# of the user's own data, which the user may name
OWN_FAMILIES = ("image_folder", "text_csv", "text_file", "huggingface", "custom")
TASKS = ("classification", "regression", "multilabel", "tokens")
MAX_IMAGE_SIDE = 1024  # pixels a side, for images that are held in memory
MIN_HELD_OUT = 10  # of data.val_size: one sample per class
MIN_TEXT_TOKENS = 3  # tokens: [CLS], one of the text, [SEP]
# a BPE vocabulary always holds 256 bytes and the special tokens
MIN_VOCABULARY = {"wordpiece": 100, "bpe": 300}
MAX_VOCABULARY = 1_000_000  # tokens of a tokenizer that mpx trains


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
    if "_target_" in data and known != "custom":
        raise UserError(f"data._target_ is for data=custom, and this is data={known}. Leave it out.")
    if unknown := [
        key for key in ("classes", "vocab_size") if known != "custom" and data.get(key, 2) is None
    ]:
        raise UserError(
            f"data.{unknown[0]}=null must be a whole number for data={known}. For example "
            f"data.{unknown[0]}=1000."
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
    samples = _train_samples(data)
    if samples is not None:
        check_batch(data, samples)


def check_batch(data: Mapping[str, Any], samples: int) -> None:
    """Raise UserError where an epoch has no full batch. samples: of the training split."""
    key = "batch_size" if data.get("global_batch_size") is None else "global_batch_size"
    if data[key] > samples:
        raise UserError(
            f"data.{key}={data[key]} must be at most the {samples} training samples of "
            f"data={family(data)}. Lower data.{key}."
        )


def _train_samples(data: Mapping[str, Any]) -> int | None:
    """Samples of the training split; None if they are unknown before the files are read."""
    if family(data) in IMAGES:
        return IMAGES[family(data)].train - data.get("val_size", 0)
    return data.get("samples")


def _check_images(data: Mapping[str, Any]) -> None:
    known, size = IMAGES[data["name"]], data["image_size"]
    if data["crop"] is not None and data["augment"] == "none":
        raise UserError(
            f"data.crop={data['crop']} is a random crop, and data.augment=none takes none. Use "
            "data.augment=crop_flip or crop, or "
            "data.crop=null."
        )
    if size is not None and size > MAX_IMAGE_SIDE:
        raise UserError(
            f"data.image_size={size} must be at most {MAX_IMAGE_SIDE} for data={data['name']}, "
            "which is held in memory."
        )
    largest = (size or known.side) + 2 * data["pad"]
    if data["crop"] is not None and data["crop"] > largest:
        raise UserError(
            f"data.crop={data['crop']} must be at most {largest}, the image's side with "
            f"data.pad={data['pad']} on both sides."
        )
    _check_channels(data, known.channels)
    most = known.train - MIN_HELD_OUT
    if data.get("val_size", 0) > most:
        raise UserError(
            f"data.val_size={data['val_size']} must be at most {most} of the {known.train} training samples."
        )


def _check_image_folder(data: Mapping[str, Any]) -> None:
    if data["augment"] == "crop":
        raise UserError("data.augment=crop is not for data=image_folder. Use data.augment=crop_flip or none.")
    if data["loader"] == "resident":
        raise UserError(
            "data.loader=resident is not for data=image_folder, whose images are read one by one. Use "
            "data.loader=workers or auto."
        )
    if data["image_size"] is None:
        raise UserError(
            "data.image_size=null is not for data=image_folder, whose images differ in size. "
            "For example data.image_size=224."
        )
    if data["resize"] < data["image_size"]:
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
    if None not in (data["pad_id"], data["vocab_size"]) and data["pad_id"] >= data["vocab_size"]:
        raise UserError(
            f"data.pad_id={data['pad_id']} must be below data.vocab_size={data['vocab_size']}. "
            "Raise data.vocab_size."
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
    if data["kind"] == "text" and data["seq_len"] < MIN_TEXT_TOKENS:
        raise UserError(
            f"data.seq_len={data['seq_len']} must be at least {MIN_TEXT_TOKENS} for data={family(data)}: "
            "every text gets a first and a "
            "last token. For example data.seq_len=64."
        )
    if tokenizer in MIN_VOCABULARY:
        smallest, size = MIN_VOCABULARY[tokenizer], data["vocab_size"]
        if not smallest <= size <= MAX_VOCABULARY:
            raise UserError(
                f"data.vocab_size={size} must be at least {smallest} and at most {MAX_VOCABULARY} for "
                f"data.tokenizer={tokenizer}. "
                "For example data.vocab_size=8000."
            )


def _check_synthetic(data: Mapping[str, Any]) -> None:
    sides = 3 if data["kind"] == "image" else 1
    if len(data["shape"]) != sides:
        wanted = "[channels, height, width], e.g. [3, 224, 224]" if sides == 3 else "[tokens], e.g. [128]"
        raise UserError(f"data.shape={data['shape']} does not fit data.kind={data['kind']}: give {wanted}")
    needed, there = math.prod(data["shape"]) * data["samples"] * (1 if sides == 3 else 4), memory_bytes()
    if there is not None and needed > there:
        raise UserError(
            f"data.shape={data['shape']} with data.samples={data['samples']} takes {needed / GIB:,.1f} "
            "GiB, and this process may "
            f"use {there / GIB:,.1f} GiB. Lower one of them."
        )
    if data["kind"] == "text" and data["vocab_size"] < data["classes"] + 2:
        raise UserError(
            f"data.vocab_size={data['vocab_size']} must be at least {data['classes'] + 2}: a token for "
            "each of data.classes="
            f"{data['classes']}, one for padding and one for the rest of a text."
        )
