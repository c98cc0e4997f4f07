"""Networks by name from torchvision and timm: `model=torchvision model.name=mobilenet_v3_small`, `model=timm model.name=convnext_atto`.

Channels, classes and, where the network has a fixed one, the image size follow the data set; `model.kwargs` goes to the constructor.
"""

from collections.abc import Mapping

from torch import nn

from mpx.errors import UserError, nearest
from mpx.models.arguments import check_not_swallowed, unexpected
from mpx.models.plain import plain
from mpx.models.probe import check_output
from mpx.spec import Spec


def build_torchvision(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classification network of torchvision.models."""
    from torchvision import models

    name = cfg.get("name")
    _check_name(name, models.list_models(module=models), "torchvision")
    kwargs = _torchvision_shape(name, spec) | plain(cfg["kwargs"])
    builder = models.get_model_builder(name)
    model = _construct(lambda: models.get_model(name, num_classes=spec.classes, **kwargs), builder, name)
    check_not_swallowed(type(model), builder, kwargs, name)
    _adapt_first_conv(model, spec.shape[0])
    check_output(model, spec, f"model.name={name}")
    return model


def _torchvision_shape(name: str, spec: Spec) -> dict:
    """What some builders must be told besides the number of classes."""
    if name.startswith("vit_"):
        return {"image_size": spec.shape[1]}
    if name.startswith("maxvit"):
        return {"input_size": tuple(spec.shape[1:])}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}  # the auxiliary heads return a tuple, and need 299 pixels
    return {}


def _adapt_first_conv(model: nn.Module, channels: int) -> None:
    """torchvision's networks take three channels; the first convolution is made anew for another number."""
    name, module = next(((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d)), (None, None))
    if module is None or module.in_channels == channels:
        return
    made_anew = nn.Conv2d(
        channels,
        module.out_channels,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        bias=module.bias is not None,
    )
    model.set_submodule(name, made_anew)


def build_timm(cfg: Mapping, spec: Spec) -> nn.Module:
    """A network of timm; one with a fixed image size is built for the data set's."""
    import timm

    name = cfg.get("name")
    _check_name(name and name.split(".")[0], timm.list_models(), "timm")
    kwargs = {"num_classes": spec.classes, "in_chans": spec.shape[0]} | plain(cfg["kwargs"])

    def create() -> nn.Module:
        try:
            return timm.create_model(name, **{"img_size": tuple(spec.shape[1:])} | kwargs)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
        return timm.create_model(name, **kwargs)  # convolutional: takes any size

    model = _construct(create, timm.model_entrypoint(name.split(".")[0]), name)
    check_output(model, spec, f"model.name={name}")
    return model


def _check_name(name: str, known: list[str], library: str) -> None:
    if not name:
        raise UserError(f"model={library} needs model.name=…, one of {library}'s {len(known)} networks, such as {known[0]}.")
    if name not in known:
        raise UserError(f"model.name={name} is not one of {library}'s {len(known)} networks.{nearest(name, known)}")


def _construct(create, builder, name: str) -> nn.Module:
    """`create()`, its complaints about arguments and sizes as one line."""
    try:
        return create()
    except TypeError as error:
        raise UserError(unexpected(error, builder, name)) from error
    except (ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"model.name={name} cannot be built for this data set with these model.kwargs ({reason}). If the images are too small for it, "
            "enlarge them: data.image_size=32, or 224."
        ) from error
