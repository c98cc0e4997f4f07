"""What the samples of a user's function must be. Each check raises UserError, which names the sample."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mpx.errors import UserError, first_line
from mpx.spec import NO_LABEL

DIMENSIONS = {"image": (3, "[C, H, W]"), "text": (1, "[T]")}  # of one x


def pair(sample: Any, where: str) -> tuple[Tensor, Tensor]:
    """(x, y) of one sample as tensors. Raises UserError."""
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise UserError(f"data._target_: {where} is a {type(sample).__name__}, where a pair (x, y) is needed")
    try:
        return torch.as_tensor(sample[0]), torch.as_tensor(sample[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"data._target_: {where} holds a value that is neither a tensor nor a number ({first_line(error)}): convert it to numbers"
        ) from error


def of_classes(task: str) -> bool:
    return task in ("classification", "tokens")


def wanted(y: Tensor, task: str, where: str) -> Tensor:
    """y of the type and dimensions that the task has. y: [N, …]. Raises UserError."""
    if task == "regression" and y.dim() == 1:
        y = y[:, None]
    if y.dim() != (1 if task == "classification" else 2) or (of_classes(task) and y.is_floating_point()):
        each = {"classification": "a whole number", "tokens": "[T] whole numbers"}.get(task, "[K] numbers")
        raise UserError(
            f"data._target_: a y of {where} is {y.dtype} of shape {list(y.shape[1:])}; data.task={task} needs {each}. "
            "Change it, or data.task."
        )
    return y.long() if of_classes(task) else y.float()


def check_x(x: Tensor, name: str, cfg: SimpleNamespace) -> None:
    """Raise UserError for an x that is not of data.kind."""
    dimensions, shape = DIMENSIONS[cfg.kind]
    fits = x.is_floating_point() or x.dtype == torch.uint8 if cfg.kind == "image" else not x.is_floating_point()
    if x.dim() != dimensions or not fits:
        numbers = "floats or uint8" if cfg.kind == "image" else "whole numbers"
        raise UserError(
            f"data._target_: an x of the {name} data is {x.dtype} of shape {list(x.shape)}; data.kind={cfg.kind} needs {numbers} {shape}. "
            "Change it, or data.kind."
        )


def check_range(y: Tensor, task: str, classes: int | None, where: str) -> None:
    """Raise UserError for a label that is not a class's number, or for a target that the task's loss has no meaning for."""
    if classes is None:
        fits, needed = ((y == 0) | (y == 1), "zeros and ones") if task == "multilabel" else (y.isfinite(), "finite numbers")
        if not fits.all():
            raise UserError(f"data._target_: {where} has {y[~fits][0]:g} in y; data.task={task} needs {needed}. Correct it, or data.task.")
        return
    judged = y[y != NO_LABEL] if task == "tokens" else y
    if judged.numel() and not 0 <= int(judged.min()) <= int(judged.max()) < classes:
        raise UserError(
            f"data._target_: {where} has labels from {int(judged.min())} to {int(judged.max())}, where they are numbered from 0 to "
            f"{classes - 1}. Renumber them, or give data.classes."
        )


def check_ids(x: Tensor, vocab_size: int, where: str) -> None:
    """Raise UserError for a token id that a model would not know."""
    if not 0 <= int(x.min()) <= int(x.max()) < vocab_size:
        raise UserError(
            f"data._target_: x of {where} has token ids from {int(x.min())} to {int(x.max())}, outside of data.vocab_size={vocab_size}. "
            "Renumber them, or give data.vocab_size."
        )
