"""Explain in one line what went wrong in a run and what to do about it."""

from pathlib import Path

from omegaconf import DictConfig

from mpx import sweep
from mpx.errors import DISK_FULL, Diverged, UserError, causes
from mpx.measure.memory import out_of_memory

UNUSED = "parameters that were not used in producing the loss"  # Lightning's words


def explain(error: BaseException, cfg: DictConfig, folder: Path) -> str | None:
    """Returns the line to show for `error`, or None for a bug, whose traceback the user should see."""
    if isinstance(error, (UserError, Diverged)):
        return str(error)
    if out_of_memory(error):
        # a project's data have their own key
        batch = f"data.batch_size={cfg.data.batch_size}" if "data" in cfg else "this batch size"
        return (
            f"out of memory with {batch}: lower it (trainer.accumulate_grad_batches keeps the effective "
            "batch), use precision=amp or amp_bf16, or a smaller model."
        )
    if isinstance(error, RuntimeError) and UNUSED in str(error):
        return (
            "several devices cannot train parameters that take no part in the loss of a step, as some of "
            "this model do. Freeze them "
            "(requires_grad_(False)), or use trainer.devices=1."
        )
    if _disk_full(error):
        again = "retry_failed=true" if sweep.in_sweep() else "if_exists=resume"
        return (
            f"the disk that holds {folder} is full. Free some space and repeat with {again}, or choose "
            "another: output_dir=DIR."
        )
    if isinstance(error, OSError) and error.filename is not None:
        ours = folder.absolute() in Path(error.filename).absolute().parents
        if ours or isinstance(error, PermissionError):
            where = "Choose another folder with output_dir=DIR." if ours else "Allow it, or name another."
            return f"{error.filename} cannot be used ({error.strerror}). {where}"
    return None


def _disk_full(error: BaseException) -> bool:
    return any(isinstance(e, OSError) and e.errno in DISK_FULL for e in causes(error))
