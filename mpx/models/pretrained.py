"""Load a transformers model from a folder, the local cache or the hub, in this order."""

import os
import pickle
from typing import Any
from urllib.parse import urlparse

import torch
from huggingface_hub import constants
from safetensors import SafetensorError

from mpx.data.spec import Spec
from mpx.errors import UserError, first_line
from mpx.system.hub import hub_answers, quiet

# what reading weights raises for files that are not whole
DAMAGED = (SafetensorError, pickle.UnpicklingError, EOFError, RuntimeError)


def load(auto_class: type, name: str, key: str, spec: Spec, **kwargs) -> tuple[Any, set[str]]:
    """`auto_class.from_pretrained(name, **kwargs)`, and the parameters that its files lack, which have random
    values.

    Local files come first, so that a machine without a network does not wait for one. key: the setting that a
    UserError names.
    """
    with quiet():
        try:
            model, info = _from_pretrained(auto_class, name, local_files_only=True, **kwargs)
        except OSError as error:
            if os.path.isdir(name):
                raise UserError(
                    f"{key}={name} is a folder without a usable model: {first_line(error)}"
                ) from error
            model, info = _from_hub(auto_class, name, key, kwargs)
        except DAMAGED as error:
            raise UserError(
                f"{key}={name}: its weights are damaged or cut off ({first_line(error)}). Save or download "
                "them again."
            ) from error
    check_classes(model, spec.names, f"{key}={name}")
    # transformers returns it in evaluation mode, in which Lightning would train it without dropout
    model.train()
    return model, {*info["missing_keys"], *(mismatch[0] for mismatch in info["mismatched_keys"])}


def check_classes(model: Any, names: tuple[str, ...], who: str) -> None:
    """Raise UserError for a model that was tuned for the same classes in another order."""
    tuned = [model.config.id2label[number] for number in sorted(model.config.id2label)]
    if tuned != list(names) and sorted(tuned) == sorted(names):  # other names say nothing, as LABEL_0 does
        raise UserError(
            f"{who} has the classes {', '.join(tuned)}, and the data {', '.join(names)}: name "
            "them so that both sort alike."
        )


def check_vocabulary(known: int, spec: Spec, who: str) -> None:
    """Raise UserError for a model with fewer token ids than the data set has."""
    if spec.ids > known:
        raise UserError(
            f"{who} knows {known} token ids and the data set uses {spec.vocab_size}; tokenise the data "
            "with the tokenizer of that model."
        )


def _from_pretrained(auto_class: Any, name: str, **kwargs):
    # transformers' default is the format of the file; mpx's precision decides on it
    kwargs = {"dtype": torch.float32} | kwargs
    return auto_class.from_pretrained(name, ignore_mismatched_sizes=True, output_loading_info=True, **kwargs)


def _from_hub(auto_class: type, name: str, key: str, kwargs: dict):
    problem = f"{key}={name} is neither a folder nor in the local cache"
    if not hub_answers():
        raise UserError(
            f"{problem}, and {urlparse(constants.ENDPOINT).hostname} cannot be reached; give "
            "the folder of a downloaded model."
        )
    try:
        return _from_pretrained(auto_class, name, **kwargs)
    except OSError as error:
        raise UserError(
            f"{problem}, and the hub has no such model, or it is not accessible; check the name."
        ) from error
