"""Networks by name from torchvision and timm: `model=torchvision model.name=mobilenet_v3_small`, `model=timm
model.name=convnext_atto`; and the user's own: `model=custom model._target_=my_package.my_module.Net`.

Channels, classes and, for networks with a fixed image size, that size come from the data set. `model.kwargs`
goes to the constructor.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from mpx.data.spec import Spec
from mpx.errors import UserError, first_line, nearest
from mpx.models.probe import TOO_SMALL, check_output
from mpx.settings import target


def build_torchvision(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classification network of torchvision.models."""
    from torchvision import models

    name = cfg["name"]
    _check_name(name, models.list_models(module=models), "torchvision")
    kwargs = _torchvision_shape(name, spec) | (cfg.get("kwargs") or {})
    model = _construct(lambda: models.get_model(name, num_classes=spec.classes, **kwargs), name)
    _check_not_swallowed(models.get_model_builder(name), type(model), kwargs, name)
    _adapt_first_conv(model, spec.shape[0])
    check_output(model, spec, f"model.name={name}")
    return model


def _torchvision_shape(name: str, spec: Spec) -> dict:
    """The arguments that some builders need in addition to the number of classes."""
    if name.startswith("vit_"):
        return {"image_size": spec.shape[1]}
    if name.startswith("maxvit"):
        return {"input_size": tuple(spec.shape[1:])}
    if name in ("googlenet", "inception_v3"):
        # the auxiliary heads return a tuple, and need 299 pixels
        return {"aux_logits": False, "init_weights": True}
    return {}


def _adapt_first_conv(model: nn.Module, channels: int) -> None:
    """Replace the first convolution if the images do not have three channels, which torchvision's networks
    expect.
    """
    first: tuple[str, Any] | None = next(
        ((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d)), None
    )
    if first is None or first[1].in_channels == channels:
        return
    name, old = first
    shape = old.out_channels, old.kernel_size, old.stride, old.padding, old.dilation
    model.set_submodule(name, nn.Conv2d(channels, *shape, bias=old.bias is not None))


def build_timm(cfg: Mapping, spec: Spec) -> nn.Module:
    """A network of timm, built for the data set's image size if its size is fixed."""
    import timm

    name = cfg["name"]
    _check_name(name.split(".")[0], timm.list_models(), "timm")
    kwargs: dict[str, Any] = {"num_classes": spec.classes, "in_chans": spec.shape[0]} | (
        cfg.get("kwargs") or {}
    )
    sized: dict[str, Any] = {"img_size": tuple(spec.shape[1:])} | kwargs

    def create() -> nn.Module:
        try:
            return timm.create_model(name, **sized)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
        return timm.create_model(name, **kwargs)  # a convolutional network takes any size

    model = _construct(create, name)
    check_output(model, spec, f"model.name={name}")
    return model


def build_custom(cfg: Mapping, spec: Spec) -> nn.Module:
    """The user's own network: any class or function that can be imported from the current folder and returns
    a torch.nn.Module whose `forward(x)` returns logits. It gets `model.kwargs` and the arguments of `known`
    that it accepts.
    """
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


def _check_name(name: str, known: list[str], library: str) -> None:
    if name not in known:
        raise UserError(
            f"model.name={name} is not one of {library}'s {len(known)} networks.{nearest(name, known)}"
        )


def _construct(create: Callable[[], nn.Module], name: str) -> nn.Module:
    """Call `create`. Raises its errors about arguments and sizes as UserErrors."""
    try:
        return create()
    except TypeError as error:
        raise UserError(f"model.kwargs does not suit {name}: {first_line(error)}.") from error
    except (ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(
            f"model.name={name} cannot be built for this data set with these model.kwargs "
            f"({first_line(error)}).{TOO_SMALL}"
        ) from error


def _check_not_swallowed(builder: Callable, network: type, kwargs: Mapping, name: str) -> None:
    """Raise UserError for an argument that a network of torchvision would ignore: some take any **kwargs.

    Allowed are the arguments of the class and of all functions in the builder's module, which take some out
    on the way.
    """
    functions = [f for _, f in inspect.getmembers(sys.modules[builder.__module__], inspect.isfunction)]
    allowed = {name for f in functions for name in inspect.signature(f).parameters}
    allowed |= set(inspect.signature(network).parameters)
    for key in kwargs:
        if key not in allowed:
            raise UserError(f"model.kwargs.{key} is not an argument of {name}.{nearest(key, allowed)}")
