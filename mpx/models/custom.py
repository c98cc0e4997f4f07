"""The user's own network: `model=custom model._target_=my_package.my_module.Net`.

The target is any class or function that can be imported from the current folder and returns a torch.nn.Module
whose `forward(x)` returns logits. It gets `model.kwargs` and the arguments of `known` that it accepts.
"""

from collections.abc import Mapping

from torch import nn

from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.models.probe import check_output
from mpx.settings import target


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """Import the target, call it and check the network that it returns."""
    path, kwargs = cfg["_target_"], cfg.get("kwargs") or {}
    model = target.build("model._target_", {**kwargs, "_target_": path}, "model.kwargs", known(spec))
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model._target_={path} returned a {type(model).__name__}; it must return a torch.nn.Module."
        )
    check_output(model, spec, f"model._target_={path}")
    return model


def known(spec: Spec) -> dict:
    """The arguments that the data set determines, by the names that a target can use for them."""
    image = spec.kind == "image"
    return {
        "spec": spec,
        "input_shape": spec.shape,
        "in_channels": spec.shape[0] if image else None,
        "num_classes": spec.classes,
        "vocab_size": spec.vocab_size,
        "seq_len": None if image else spec.shape[0],
        "pad_id": spec.pad_id,
    }
