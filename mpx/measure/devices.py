"""The accelerators of this machine."""

from typing import Any

import torch

from mpx.settings.reachable import require_gpu

NO_DEVICE = "no CUDA device is visible"


def chosen(accelerator: str) -> torch.device:
    """The device of a command that uses one. Raises UserError for a GPU that is not there."""
    there = torch.cuda.is_available()
    require_gpu("accelerator", accelerator, there=there)
    return torch.device("cuda" if accelerator != "cpu" and there else "cpu")


def devices() -> dict[str, Any]:
    """`device` (names of all visible ones), `compute_capability` and `driver`."""
    if not torch.cuda.is_available():
        names = ("device", "compute_capability", "driver")
        return {"device": None, "compute_capability": None, "driver": None} | {f"{name}_reason": NO_DEVICE for name in names}
    count = torch.cuda.device_count()
    found = {"device": [torch.cuda.get_device_name(i) for i in range(count)]}
    found["compute_capability"] = ["{}.{}".format(*torch.cuda.get_device_capability(i)) for i in range(count)]
    return found | _driver()


def _driver() -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return {"driver": pynvml.nvmlSystemGetDriverVersion()}
    except Exception as error:  # NVML missing, or a device that is not NVIDIA's: the run does not depend on it
        return {"driver": None, "driver_reason": f"NVML: {error}"}
