"""Any transformers model: `model=hf model.name=` a model type (distilbert), a folder or a hub name.

A model type is built from its default configuration with the changes in `model.kwargs`; nothing is
downloaded. The network's class is transformers' own with another `forward`, so parameters have their usual
names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mpx.data.spec import Spec
from mpx.errors import UserError, first_line, nearest
from mpx.models.pretrained import check_vocabulary, load
from mpx.models.probe import check_output
from mpx.system.hub import quiet

AUTO_CLASSES = {
    "image": AutoModelForImageClassification,
    "text": AutoModelForSequenceClassification,
    "lm": AutoModelForCausalLM,
}


def auto_class(spec: Spec) -> Any:
    return AutoModelForTokenClassification if spec.task == "tokens" else AUTO_CLASSES[spec.kind]


class LogitsOnly:
    """Mixed into a transformers model: `forward(x) -> logits`, instead of keyword arguments and an output
    object.
    """

    mpx_kind: str
    mpx_pad_id: int | None  # None: no token is padding, so that no mask is needed

    def forward(self, x: Tensor) -> Tensor:
        inputs: dict[str, Any] = {"pixel_values": x} if self.mpx_kind == "image" else {"input_ids": x}
        if self.mpx_pad_id is not None:
            inputs["attention_mask"] = (x != self.mpx_pad_id).long()  # [B, T]
        if self.mpx_kind == "lm":
            inputs["use_cache"] = False
        network: Any = super()
        return network.forward(**inputs, return_dict=True).logits


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classifier of images or texts, or a causal language model."""
    key = "model.pretrained" if cfg.get("pretrained") else "model.name"
    name, kwargs = cfg.get("pretrained") or cfg["name"], cfg.get("kwargs") or {}
    if key == "model.name" and name in CONFIG_MAPPING:
        model = _from_config(name, kwargs, spec)
    else:
        model = _from_pretrained(name, kwargs, spec, key)
        if spec.kind == "lm":  # many vocabularies have more ids than the tokenizer uses
            spec = replace(spec, classes=model.get_output_embeddings().out_features)
    try:
        check_output(model, spec, f"{key}={name}")
    except AttributeError as error:
        # such as T5's, of which transformers' own configuration lacks what its classifier reads
        raise UserError(
            f"{key}={name} cannot take {spec.kind} data ({first_line(error)}). Choose another name."
        ) from error
    summary = getattr(model.config, "summary_type", None)
    if spec.kind == "text" and spec.padded and summary == "last" and hasattr(model, "sequence_summary"):
        raise UserError(
            f"{key}={name} classifies a text by its last token, which is padding in short texts. Choose "
            "another name."
        )
    return model


def logits_only(model: Any, spec: Spec) -> Any:
    """The model, whose class is now also LogitsOnly."""
    network = type(model)
    pad_id = spec.pad_id if spec.kind == "text" and spec.padded else None
    own = {"mpx_kind": spec.kind, "mpx_pad_id": pad_id, "__module__": network.__module__}
    model.__class__ = type(network.__name__, (LogitsOnly, network), own)
    return model


def _from_config(name: str, kwargs: dict, spec: Spec) -> nn.Module:
    config_class = CONFIG_MAPPING[name]
    _check_kwargs(name, kwargs, config_class)
    config = config_class(**_shape_settings(config_class(), kwargs, spec), **kwargs)
    try:
        with quiet():
            return logits_only(auto_class(spec).from_config(config), spec)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(
            f"model.name={name} model.kwargs={kwargs} cannot be built for {spec.kind} data: "
            f"{first_line(error)}"
        ) from error


def _shape_settings(default, kwargs: dict, spec: Spec) -> dict:
    """The settings that the data set determines, if this configuration has them and `kwargs` does not set
    them.
    """
    settings: dict[str, Any] = {"num_labels": spec.classes}
    if spec.kind == "image":
        settings |= {"image_size": spec.shape[1], "num_channels": spec.shape[0]}
    else:
        settings |= {"vocab_size": spec.vocab_size, "pad_token_id": spec.pad_id}
        # the published ids do not exist in a smaller vocabulary
        for token in ("bos_token_id", "eos_token_id"):
            if isinstance(getattr(default, token, None), int) and getattr(default, token) >= spec.ids:
                settings[token] = None
        positions = getattr(default, "max_position_embeddings", None)
        if isinstance(positions, int) and 0 < positions < spec.shape[0]:  # xlnet has -1, for any length
            settings["max_position_embeddings"] = spec.shape[0]
    return {
        key: value
        for key, value in settings.items()
        if key not in kwargs and (key == "num_labels" or hasattr(default, key))
    }


def _check_kwargs(name: str, kwargs: dict, config_class: type) -> None:
    """Raise UserError for an unknown keyword, which transformers would silently ignore."""
    default = config_class()
    for key in kwargs:
        if not hasattr(default, key):
            known = [word for word in default.to_dict() if not word.startswith("_")]
            raise UserError(
                f"model.kwargs.{key} is not a setting of {name}; allowed: "
                f"{', '.join(sorted(known))}.{nearest(key, known)}"
            )


def _from_pretrained(name: str, kwargs: dict, spec: Spec, key: str) -> Any:
    labels = {} if spec.kind == "lm" else {"num_labels": spec.classes}
    try:
        model, fresh = load(auto_class(spec), name, key, spec, **labels, **kwargs)
    except UserError as error:
        if key == "model.pretrained":
            raise
        raise UserError(
            f"{error} Or name one of transformers' model types.{nearest(name, CONFIG_MAPPING)}"
        ) from error
    except ValueError as error:
        raise UserError(f"{key}={name} has no network for {spec.kind} data: {first_line(error)}") from error
    _refuse_random(model, fresh, spec, f"{key}={name}")
    if spec.vocab_size is not None:
        check_vocabulary(model.get_input_embeddings().num_embeddings, spec, f"{key}={name}")
    if spec.pad_id is not None:
        # by which networks such as GPT-2's find the last token of a text
        model.config.pad_token_id = spec.pad_id
    return logits_only(model, spec)


def _refuse_random(model: nn.Module, fresh: set[str], spec: Spec, who: str) -> None:
    """Raise UserError where more than a classifier, and the pooler below it, would be random: transformers
    only logs it.

    fresh: the names of what the files lack.
    """
    weights = {name for name, _ in model.named_parameters()}
    own = {
        name
        for name in weights
        if spec.kind == "lm" or (name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name)
    }
    if lacking := own & fresh:
        raise UserError(
            f"{who} lacks some of the network's weights: {len(lacking)} of {len(weights)}, such as "
            f"{min(lacking)}, would be random. Leave "
            "out model.kwargs that change its size, or name another folder."
        )
