"""Try a network on one sample, on the CPU, before training: does it take the data and return logits of the
right shape?

A network is tried in evaluation mode: in training mode, batch norm would change its running means.
"""

import torch
from torch import Tensor, nn

from mpx.data.spec import Spec
from mpx.errors import UserError, first_line
from mpx.system.processes import evaluating

TOO_SMALL = (
    " If the images are too small for it, enlarge them, as data.image_size=32 or 224, or choose a network "
    "for small ones, such as model=resnet20."
)
# errors of networks for unsuitable inputs
REFUSALS = (RuntimeError, ValueError, AssertionError, IndexError, TypeError)


def check_output(model: nn.Module, spec: Spec, who: str) -> None:
    """Raise UserError unless `model` maps one sample to float logits of the right shape and, for lm, is
    causal.

    who: the model as the user named it, such as `model.name=vgg11`. Draws no random numbers and leaves the
    layers' modes as they are.
    """
    with torch.no_grad(), evaluating(model):
        _check_shape(_forward(model, spec, who), spec, who)
        if spec.kind == "lm":
            _check_causal(model, spec, who)


def check_crop(model: nn.Module, spec: Spec, crop: int | None) -> None:
    """Raise UserError unless `model`, which is built for images of `spec`, also takes images of crop × crop
    pixels. None: no crops.
    """
    if crop is None:
        return
    with torch.no_grad(), evaluating(model):
        try:
            fits = model(sample(spec, crop)).shape == (1, spec.classes)
        except REFUSALS:
            fits = False
    if not fits:
        size = "×".join(map(str, spec.shape[1:]))
        raise UserError(
            f"data.crop={crop} is not for this model, which only takes images of {size} pixels. Use "
            "data.crop=null, or a network for images of any size, such as model=resnet18."
        )


def reads_padding(model: nn.Module, spec: Spec, length: int) -> bool:
    """Whether what the model says of a text of `length` tokens changes with the padding after it, as in an
    LSTM that also reads backwards, or whether the model only takes texts of the data's length.
    """
    text = sample(spec)[:, :length]
    padded = torch.full_like(sample(spec), spec.pad_id or 0)
    padded[:, :length] = text
    with torch.no_grad(), evaluating(model):
        try:
            short, whole = model(text), model(padded)
        except REFUSALS:
            return True
    whole = whole[:, :length] if spec.task == "tokens" else whole
    return short.shape != whole.shape or not torch.allclose(short, whole, rtol=1e-3, atol=1e-4)


def sample(spec: Spec, side: int | None = None) -> Tensor:
    """One input: an image of ones (of `side` × `side` pixels, if given) or a text of different token ids,
    none of them padding.
    """
    if spec.kind == "image":
        channels, height, width = spec.shape
        return torch.ones(1, channels, side or height, side or width)
    ids = torch.arange(spec.shape[0]) % spec.ids
    if spec.pad_id is not None:
        ids[ids == spec.pad_id] = (spec.pad_id + 1) % spec.ids
    return ids[None]


def _forward(model: nn.Module, spec: Spec, who: str):
    try:
        return model(sample(spec))
    except REFUSALS as error:
        shape = "x".join(map(str, spec.shape))
        raise UserError(
            f"{who} cannot take {spec.kind} data of shape {shape} "
            f"({first_line(error)}).{TOO_SMALL if spec.kind == 'image' else ''}"
        ) from error


def _check_shape(output, spec: Spec, who: str) -> None:
    expected = (
        (1, *spec.shape, spec.classes) if spec.kind == "lm" or spec.task == "tokens" else (1, spec.classes)
    )
    if not isinstance(output, Tensor):
        raise UserError(
            f"{who} returned a {type(output).__name__}; forward(x) must return one float tensor of logits, "
            f"{list(expected)} for one sample."
        )
    if tuple(output.shape) != expected or not output.is_floating_point():
        raise UserError(
            f"{who} returned {output.dtype} of shape {list(output.shape)} for one sample; expected float "
            f"logits of shape {list(expected)}: "
            "the network must take its number of classes from the data set."
        )


def _check_causal(model: nn.Module, spec: Spec, who: str) -> None:
    """Raise UserError if another last token changes the logits of an earlier one."""
    ids = sample(spec)
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 1) % spec.ids
    if not torch.allclose(model(ids)[:, :-1], model(changed)[:, :-1], atol=1e-4):
        raise UserError(
            f"{who} sees the tokens that it must predict: on lm data a network must be causal; choose a "
            "causal one, such as gpt2 (for BERT-like ones: model.kwargs.is_decoder=true)."
        )
