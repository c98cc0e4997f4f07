"""Weights from a file of mpx's or of others, read as tensors: nothing in it is run as code."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mpx.errors import UserError, first_line
from mpx.runs.folder import damage

# before names: of a LightningModule, DataParallel and torch.compile
PREFIXES = ("", "model.", "module.", "_orig_mod.", "model._orig_mod.", "module._orig_mod.")
UNREADABLE = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
    SafetensorError,
)


def load_weights(path: Path, model: nn.Module, key: str) -> dict[str, Any]:
    """Load the weights in `path` into `model`: a checkpoint of mpx or Lightning, a plain state_dict, or a
    .safetensors file.

    Returns all that the file holds. Raises UserError, which names the setting `key`, where the file is
    unreadable or its weights are of another model.
    """
    given = f"{key}={path}"
    content = read_tensors(path, key, " Save the weights alone, as by torch.save(model.state_dict(), FILE).")
    weights = content.get("state_dict", content) if isinstance(content, dict) else {}
    if not weights or not _is_state_dict(weights):
        raise UserError(
            f"{given} holds no weights. Give a checkpoint of mpx or Lightning, or a saved state_dict."
        )
    expected = model.state_dict()
    weights, shared = _under_own_names(weights, expected), _shared(expected)
    for names in shared:  # safetensors.torch.save_model writes one of them
        known = [name for name in names if name in weights]
        weights |= {name: weights[known[0]] for name in names if known and name not in weights}
    refuse_other_model(given, weights, expected)
    for name, _ in model.named_parameters():
        if not torch.isfinite(weights[name]).all():
            raise UserError(f"{given} has infinite or NaN values as {name}. Use another checkpoint.")
    _refuse_other_values(given, weights, expected, shared)
    model.load_state_dict(weights)
    return content


def _is_state_dict(weights: Any) -> bool:
    return isinstance(weights, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    )


def _refuse_other_values(
    given: str, weights: dict[str, Tensor], expected: dict[str, Tensor], shared: list[list[str]]
) -> None:
    """Raise UserError for values that mean nothing in this model, or differ where it has one weight.

    given: as in refuse_other_model.
    """
    for name, value in expected.items():
        # quantised ones have scales elsewhere
        if value.is_floating_point() and not weights[name].is_floating_point():
            kind = str(weights[name].dtype).removeprefix("torch.")
            raise UserError(
                f"{given} has {kind} as {name}, which is a float in this model. Save it as floating point."
            )
    for first, *others in shared:
        if other := next((name for name in others if not torch.equal(weights[first], weights[name])), None):
            raise UserError(
                f"{given} has different values for {first} and {other}, which are one weight in this model. "
                "Use the model= that it was trained with."
            )


def has_averages(found: dict[str, Any]) -> bool:
    """Whether it is the checkpoint of a run with trainer.ema_decay. Files of others have callbacks of any
    type.
    """
    return isinstance(callbacks := found.get("callbacks"), dict) and "Ema" in callbacks


def load_averages(checkpoint: dict[str, Any], model: nn.Module) -> None:
    """Load what a run with trainer.ema_decay was validated and tested with: its averages, zero where its
    model is pruned.

    Raises one of UNREADABLE for a checkpoint without them, or with those of another model.
    """
    averages = checkpoint["callbacks"]["Ema"]["averages"]
    for name, mask in checkpoint["callbacks"].get("Pruning", {}).get("masks", {}).items():
        averages[name].masked_fill_(~mask, 0)
    if lacking := dict(model.named_parameters()).keys() - averages.keys():
        raise KeyError(f"no average of {min(lacking)}")
    model.load_state_dict(averages, strict=False)  # a weight that two layers share has one name there


def read_tensors(path: Path, key: str, remedy: str = "") -> Any:
    """What torch.save or safetensors wrote to `path`. Raises UserError where that is unreadable, or more than
    tensors and plain values.

    remedy: for the latter, a sentence after a space.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if (reason := damage(path)) is not None:
            raise ValueError(reason)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{key}={path} holds something other than tensors and plain values; it was not loaded.{remedy}"
        ) from error
    except UNREADABLE as error:
        raise UserError(
            f"{key}={path} cannot be read, it is damaged or no checkpoint ({first_line(error)[:160]}). Use "
            "another checkpoint."
        ) from error


def read_checkpoint(path: Path, model: nn.Module, key: str = "ckpt_path") -> dict[str, Any]:
    """Read the checkpoint in `path`. Raises UserError where it is unreadable, holds no training, or is of
    another model.
    """
    checkpoint = read_tensors(path, key)
    if (
        not isinstance(checkpoint, dict)
        or not {"state_dict", "loops", "optimizer_states", "global_step"} <= checkpoint.keys()
    ):
        raise UserError(
            f"{key}={path} is not a training checkpoint of mpx: it has no model and training state. Use a "
            "last.ckpt that mpx wrote."
        )
    refuse_other_model(f"{key}={path}", checkpoint["state_dict"], model.state_dict())
    return checkpoint


@contextmanager
def continuing(path: Path) -> Iterator[None]:
    """Raise UserError, which names ckpt_path, where a part of the run cannot load its state from the
    checkpoint.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a part that does not fit can raise nearly anything
        reason = f"there is no {error}" if isinstance(error, KeyError) else first_line(error)[:160]
        raise UserError(
            f"ckpt_path={path} cannot be continued: {reason}. Use another checkpoint, or start the run again."
        ) from error


def refuse_other_model(given: str, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    """Raise UserError for the first tensor that only one of the two has, or in another shape. given: the
    file, as the user named it.

    A tensor without values (on `meta`) counts as missing: loading it would leave the model's random ones.
    """
    for key in (*ours, *theirs):
        got = _shape(theirs[key]) if key in theirs else "missing"
        expected = tuple(ours[key].shape) if key in ours else "missing"
        if got != expected:
            raise UserError(
                f"{given} is a checkpoint of another model: {key} is {got} there and {expected} in this one. "
                "Use the model= and data= that it was trained with."
            )


def _under_own_names(weights: dict[str, Tensor], ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights without the prefix of another program's file, such as `module._orig_mod.`."""
    ways = [
        {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        for prefix in PREFIXES
    ]
    return max(ways, key=lambda way: len(way.keys() & ours.keys()))


def _shared(ours: dict[str, Tensor]) -> list[list[str]]:
    """The names of each weight that has several, because layers share it."""
    names: dict[tuple, list[str]] = {}
    for name, value in ours.items():
        names.setdefault((value.data_ptr(), value.shape, value.stride()), []).append(name)
    # a tensor on `meta` has the address 0
    return [found for (place, *_), found in names.items() if place and len(found) > 1]


def _shape(weight: Any) -> tuple[int, ...] | str:
    if not isinstance(weight, Tensor):
        return f"a {type(weight).__name__}"
    return "missing" if weight.is_meta else tuple(weight.shape)
