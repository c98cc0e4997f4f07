"""Any transformers model: `model=hf model.name=` a model type (distilbert), a folder or a hub name.

A model type is built from its default configuration changed by `model.kwargs`; nothing is downloaded. The class is transformers' own
with only `forward` changed, so parameter names are the plain ones.
"""

from collections.abc import Mapping

from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mpx.errors import UserError, nearest
from mpx.models.plain import plain
from mpx.models.pretrained import load, quiet
from mpx.models.probe import check_output
from mpx.spec import Spec

AUTO_CLASSES = {"image": AutoModelForImageClassification, "text": AutoModelForSequenceClassification, "lm": AutoModelForCausalLM}


class LogitsOnly:
    """Mixed into a transformers model: `forward(x) -> logits`, in place of keyword arguments and an output object."""

    mpx_kind: str
    mpx_pad_id: int | None
    padded = True  # False: no token is padding, and a mask of ones would only cost time

    def forward(self, x: Tensor) -> Tensor:
        inputs = {"pixel_values": x} if self.mpx_kind == "image" else {"input_ids": x}
        if self.mpx_pad_id is not None and self.padded:
            inputs["attention_mask"] = (x != self.mpx_pad_id).long()  # [B, T]
        if self.mpx_kind == "lm":
            inputs["use_cache"] = False
        return super().forward(**inputs, return_dict=True).logits


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classifier of images or texts or a causal language model."""
    name, kwargs = cfg.get("name"), plain(cfg["kwargs"])
    if not name:
        raise UserError("model=hf needs model.name=…: a model type such as distilbert or gpt2, a folder, or a hub name.")
    make = _from_config if name in CONFIG_MAPPING else _from_pretrained
    model = make(name, kwargs, spec)
    model.mpx_kind, model.mpx_pad_id = spec.kind, spec.pad_id if spec.kind == "text" else None
    model.__class__ = type(type(model).__name__, (LogitsOnly, type(model)), {})
    check_output(model, spec, f"model.name={name}")
    return model


def _from_config(name: str, kwargs: dict, spec: Spec) -> nn.Module:
    config_class = CONFIG_MAPPING[name]
    _check_kwargs(name, kwargs, config_class)
    auto_class = AUTO_CLASSES[spec.kind]
    if config_class not in auto_class._model_mapping:
        raise UserError(f"model.name={name} has no network for {spec.kind} data in transformers; choose another name.")
    config = config_class(**_shape_settings(config_class(), kwargs, spec), **kwargs)
    try:
        with quiet():
            return auto_class.from_config(config)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(f"model.name={name} model.kwargs={kwargs} cannot be built for this data: {str(error).splitlines()[0]}") from error


def _shape_settings(default, kwargs: dict, spec: Spec) -> dict:
    """What the data set decides, under the names that this configuration has."""
    settings = {"num_labels": spec.classes}
    if spec.kind == "image":
        settings |= {"image_size": spec.shape[1], "num_channels": spec.shape[0]}
    else:
        settings |= {"vocab_size": spec.vocab_size, "pad_token_id": spec.pad_id}
        for token in ("bos_token_id", "eos_token_id"):  # those of the published vocabulary mean nothing in a smaller one
            if isinstance(getattr(default, token, None), int) and getattr(default, token) >= spec.vocab_size:
                settings[token] = None
        longest = getattr(default, "max_position_embeddings", None)
        if isinstance(longest, int) and longest < spec.shape[0]:
            settings["max_position_embeddings"] = spec.shape[0]
    return {key: value for key, value in settings.items() if key not in kwargs and (key == "num_labels" or hasattr(default, key))}


def _check_kwargs(name: str, kwargs: dict, config_class: type) -> None:
    """transformers takes any keyword and ignores what it does not know: a misspelt one would silently have no effect."""
    default = config_class()
    for key in kwargs:
        if not hasattr(default, key):
            known = [word for word in default.to_dict() if not word.startswith("_")]
            raise UserError(f"model.kwargs.{key} is not a setting of {name}; allowed: {', '.join(sorted(known))}.{nearest(key, known)}")


def _from_pretrained(name: str, kwargs: dict, spec: Spec) -> nn.Module:
    labels = {} if spec.kind == "lm" else {"num_labels": spec.classes}
    try:
        model, _ = load(AUTO_CLASSES[spec.kind], name, "model.name", **labels, **kwargs)
        return model
    except UserError as error:
        raise UserError(f"{error} Or name one of transformers' model types.{nearest(name, CONFIG_MAPPING)}") from error
    except ValueError as error:
        raise UserError(f"model.name={name} has no network for {spec.kind} data: {str(error).splitlines()[0]}") from error
