"""Choose the tokenizer of a data set if the user names none. A pretrained model brings its own, since it only
knows its token ids.
"""

import os
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

TRAINED = ("wordpiece", "bpe", "char")  # tokenizers that are made from the data


def pretrained(model: Mapping[str, Any]) -> str | None:
    """The folder or hub name that the model's weights come from; None for random weights."""
    name = model.get("pretrained")
    if name is None and model.get("family") == "hf":
        named = model.get("name")
        return named if named and ("/" in named or os.path.isdir(named)) else None
    return name


def usual_tokenizer(otherwise: str, *, _root_: DictConfig) -> str:
    """The resolver ${mpx.tokenizer:…} of conf/data/: the model's tokenizer if it is pretrained, else
    `otherwise`.
    """
    model = _root_.get("model")
    return (
        pretrained(model) if isinstance(model, Mapping) or OmegaConf.is_dict(model) else None
    ) or otherwise


OmegaConf.register_new_resolver("mpx.tokenizer", usual_tokenizer, replace=True)
