"""Read checkpoints without running code from them. Every error is one line that names the setting and the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from mpx.errors import UserError, first_line
from mpx.runs.weights import read_tensors, refuse_other_model

REQUIRED = {  # what Lightning needs to continue
    "state_dict": dict, "loops": dict, "optimizer_states": list, "lr_schedulers": list, "global_step": int,
    "pytorch-lightning_version": str,
}  # fmt: skip


def read_checkpoint(path: Path, model: nn.Module, key: str = "ckpt_path") -> dict[str, Any]:
    """Read the checkpoint in `path` without running code from it.

    Raises UserError, which names the setting `key`, where it is unreadable, not mpx's, or of another model.
    """
    checkpoint = read_tensors(path, key)
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(key), kind) for key, kind in REQUIRED.items()):
        raise UserError(
            f"{key}={path} is not a training checkpoint of mpx: it has no model and training state. Use a last.ckpt that mpx wrote."
        )
    refuse_other_model(f"{key}={path}", checkpoint["state_dict"], model.state_dict())
    return checkpoint


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
        reason = f"there is no {error}" if isinstance(error, KeyError) else first_line(error)[:160]
        raise UserError(f"ckpt_path={path} cannot be continued: {reason}. Use another checkpoint, or start the run again.") from error
