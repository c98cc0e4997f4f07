"""One forward pass on the CPU tells, before any training, whether a looked-up network suits the data."""

import torch
from torch import Tensor, nn

from mpx.errors import UserError
from mpx.models.evaluating import evaluating
from mpx.spec import Spec

REFUSALS = (RuntimeError, ValueError, AssertionError, IndexError, TypeError)  # by which networks refuse an input
LARGER_IMAGES = (16, 32, 64, 96, 128, 224)  # sizes tried for a hint


def check_output(model: nn.Module, spec: Spec, who: str) -> None:
    """Raise UserError unless `model` maps one sample to float logits of the right shape; for lm also unless it is causal.

    `who` names the model as the user did (`model.name=vgg11`). Its layers are left as they were, in training mode or not; no random
    numbers are drawn.
    """
    with torch.no_grad(), evaluating(model):  # batch norm over one sample, and its running means, must not move
        _check_shape(_forward(model, spec, who), spec, who)
        if spec.kind == "lm":
            _check_causal(model, spec, who)


def check_crop(model: nn.Module, spec: Spec, crop: int) -> None:
    """Raise UserError unless `model`, built for images of `spec`, also takes those of crop × crop pixels."""
    with torch.no_grad(), evaluating(model):
        try:
            fits = model(sample(spec, crop)).shape == (1, spec.classes)
        except REFUSALS:
            fits = False
    if not fits:
        size = "×".join(map(str, spec.shape[1:]))
        raise UserError(
            f"data.crop={crop} is not for this model, which takes images of {size} pixels alone. Use data.crop=null, or a network for "
            "images of any size, such as model=resnet18."
        )


def sample(spec: Spec, side: int | None = None) -> Tensor:
    """One input: ones for an image (of `side` pixels, if given), different token ids for a text."""
    if spec.kind == "image":
        channels, height, width = spec.shape
        return torch.ones(1, channels, side or height, side or width)
    ids = torch.arange(spec.shape[0]) % spec.vocab_size
    if spec.pad_id is not None:
        ids[ids == spec.pad_id] = (spec.pad_id + 1) % spec.vocab_size
    return ids[None]


def _forward(model: nn.Module, spec: Spec, who: str):
    try:
        return model(sample(spec))
    except REFUSALS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        shape = "x".join(map(str, spec.shape))
        raise UserError(f"{who} cannot take {spec.kind} data of shape {shape} ({reason}).{_size_hint(model, spec)}") from error


def _size_hint(model: nn.Module, spec: Spec) -> str:
    if spec.kind != "image":
        return ""
    for side in LARGER_IMAGES:
        if side > max(spec.shape[1:]):
            try:
                model(sample(spec, side))
            except Exception:  # any failure means that this size is no help
                continue
            return f" It takes larger images: data.image_size={side}."
    return " Enlarge the images (data.image_size=224), or choose a network for small ones, such as model=resnet20."


def _check_shape(output, spec: Spec, who: str) -> None:
    expected = (1, *spec.shape, spec.classes) if spec.kind == "lm" else (1, spec.classes)
    if not isinstance(output, Tensor):
        raise UserError(
            f"{who} returned a {type(output).__name__}; forward(x) must return one float tensor of logits, {list(expected)} for one sample."
        )
    if tuple(output.shape) != expected or not output.is_floating_point():
        raise UserError(
            f"{who} returned {output.dtype} of shape {list(output.shape)} for one sample; expected float logits of shape {list(expected)}: "
            "the network must take its number of classes from the data set."
        )


def _check_causal(model: nn.Module, spec: Spec, who: str) -> None:
    """Changing the last token must leave the logits of all earlier ones as they are."""
    ids = sample(spec)
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 1) % spec.vocab_size
    if not torch.allclose(model(ids)[:, :-1], model(changed)[:, :-1], atol=1e-4):
        raise UserError(
            f"{who} sees the tokens that it is to predict: on lm data a network must be causal; choose one that is, such as gpt2 "
            "(for BERT-like ones: model.kwargs.is_decoder=true)."
        )
