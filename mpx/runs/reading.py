"""Read checkpoints without running code from them. Every error is one line that names the setting and the file."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpx.errors import UserError
from mpx.runs.damage import damage

REQUIRED = {  # what Lightning needs to continue
    "state_dict": dict, "loops": dict, "optimizer_states": list, "lr_schedulers": list, "global_step": int,
    "pytorch-lightning_version": str,
}  # fmt: skip


def read_checkpoint(path: Path, model: nn.Module, key: str = "ckpt_path") -> dict[str, Any]:
    """Read the checkpoint in `path` without running code from it.

    Raises UserError, which names the setting `key`, where it is unreadable, not mpx's, or of another model.
    """
    checkpoint = _read(path, key)
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(key), kind) for key, kind in REQUIRED.items()):
        raise UserError(
            f"{key}={path} is no training checkpoint of mpx: it has no model and training state. Use a last.ckpt that mpx wrote."
        )
    _refuse_other_model(f"{key}={path}", checkpoint["state_dict"], model.state_dict())
    return checkpoint


def load_weights(path: Path, model: nn.Module, key: str) -> None:
    """Load the weights in `path`, a checkpoint or a plain state_dict, into `model`.

    Raises UserError, which names the setting `key`, where the file is unreadable or its weights are of another model.
    """
    found = _read(path, key)
    weights = found.get("state_dict", found) if isinstance(found, dict) else {}
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{key}={path} holds no weights. Give a checkpoint of mpx, or a saved state_dict.")
    _refuse_other_model(f"{key}={path}", weights, model.state_dict())
    model.load_state_dict(weights)


@contextmanager
def continuing(path: Path) -> Iterator[None]:
    """Raise UserError, which names ckpt_path, where a part of the run refuses or misses its state in the checkpoint.

    Every part judges its own state: a missing key or a tensor of another shape raises in it.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a part that does not fit can raise nearly anything
        reason = f"there is no {error}" if isinstance(error, KeyError) else _first(error)
        raise UserError(f"ckpt_path={path} cannot be continued: {reason}. Use another checkpoint, or start the run again.") from error


def _read(path: Path, key: str) -> Any:
    try:
        if (reason := damage(path)) is not None:
            raise ValueError(reason)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"{key}={path} holds something other than tensors and plain values; it was not loaded.") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{key}={path} cannot be read, it is damaged or no checkpoint ({_first(error)}). Use another checkpoint."
        ) from error


def _refuse_other_model(given: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for key in (*ours, *theirs):
        got = _shape(theirs[key]) if key in theirs else "missing"
        expected = tuple(ours[key].shape) if key in ours else "missing"
        if got != expected:
            raise UserError(
                f"{given} is a checkpoint of another model: {key} is {got} there and {expected} in this one. "
                "Use the model= and data= that it was trained with."
            )


def _shape(weight: Any) -> tuple[int, ...] | str:
    return tuple(weight.shape) if isinstance(weight, torch.Tensor) else f"a {type(weight).__name__}"


def _first(error: BaseException) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split("\n")[0].split())[:160]
