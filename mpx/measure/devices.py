"""The accelerators of this machine."""

from typing import Any

import torch

from mpx.errors import UserError
from mpx.settings.reachable import require_gpu
from mpx.system.printing import how_many

NO_DEVICE = "no CUDA device is visible"


def chosen(accelerator: str) -> torch.device:
    """The device of a command that uses one. Raises UserError as `usable_gpus` does."""
    return torch.device("cuda" if usable_gpus("accelerator", accelerator) else "cpu")


def usable_gpus(key: str, accelerator: str) -> int:
    """The number of GPUs to choose from; 0 for the CPU. Raises UserError for a GPU that is not there, or that
    CUDA cannot use.

    The driver may show a GPU that CUDA cannot use. With accelerator=auto a run would then take the CPU, and
    many times as long.
    """
    if accelerator == "cpu":
        return 0
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if torch.cuda.device_count():
        raise UserError(
            f"{key}={accelerator}: {why_no_gpu()}. Mend that (python -m mpx.doctor checks it), "
            f"or do without by {key}=cpu."
        )
    require_gpu(key, accelerator, there=False)
    return 0


def why_no_gpu() -> str:
    """Why PyTorch can use no GPU: there is none, no driver, or one that is too old."""
    if torch.version.cuda is None:
        return (
            "this torch was built without CUDA; pytorch.org/get-started has the line that installs one "
            "with it"
        )
    said = "CUDA starts, but shows no device"
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        said = " ".join(str(error).split()).rstrip(".")
    count = torch.cuda.device_count()
    return (
        (
            f"the driver shows {how_many(count, 'GPU')}, but CUDA cannot use "
            f"{'it' if count == 1 else 'them'}: {said}"
        )
        if count
        else said
    )


def devices(used: Any = "auto") -> dict[str, Any]:
    """`device` (names of all visible ones), `compute_capability` and `driver`. used: those of the run, as in
    trainer.devices; a machine may have GPUs of several kinds, so those that a list picks come first.
    """
    if not torch.cuda.is_available():
        names = ("device", "compute_capability", "driver")
        return dict.fromkeys(names) | {f"{name}_reason": NO_DEVICE for name in names}
    visible = range(torch.cuda.device_count())
    first = [] if isinstance(used, int | str) else [i for i in used if i in visible]
    order = [*first, *(i for i in visible if i not in first)]
    known = {"device": [torch.cuda.get_device_name(i) for i in order]}
    known["compute_capability"] = ["{}.{}".format(*torch.cuda.get_device_capability(i)) for i in order]
    return known | _driver()


def _driver() -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return {"driver": pynvml.nvmlSystemGetDriverVersion()}
    except Exception as error:
        # NVML missing, or a device that is not NVIDIA's: the run does not depend on it
        return {"driver": None, "driver_reason": f"NVML: {error}"}
