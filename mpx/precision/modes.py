"""The table of precision modes, and the global switches each one sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from mpx.errors import UserError


@dataclass(frozen=True)
class Mode:
    """Formats are those in which matmul, conv and rnn multiply; weights and optimizer state are FP32 in all of these modes."""

    name: str
    matmul: str
    conv: str
    rnn: str
    autocast: torch.dtype | None = None
    scaled: bool = False  # dynamic loss scaling

    @property
    def formats(self) -> dict[str, str]:
        return {"matmul": self.matmul, "conv": self.conv, "rnn": self.rnn}


MODES = {
    mode.name: mode
    for mode in (
        Mode("fp32", "fp32", "fp32", "fp32"),
        Mode("tf32", "tf32", "tf32", "tf32"),
        Mode("amp", "fp16", "fp16", "fp16", autocast=torch.float16, scaled=True),
        Mode("amp_bf16", "bf16", "bf16", "bf16", autocast=torch.bfloat16),
    )
}


def emulated(mode: Mode, device: torch.device, wish: str) -> bool:
    """Whether `mode` is rounded to its format and computed in FP32 on `device`. wish: auto, always or never.

    auto emulates what the device lacks: TF32 on CPUs and on GPUs older than Ampere, BF16 on those GPUs, and FP16 on CPUs, where
    PyTorch has it but runs it hundreds of times slower than FP32. Raises UserError for a format that is neither there nor emulated.
    """
    if mode.name == "fp32":
        return False
    native = _native(mode, device)
    if wish == "never" and not native and mode.matmul != "fp16":
        raise UserError(
            f"precision.emulate=never: {device.type} has no {mode.matmul.upper()}. Use precision.emulate=auto or another precision=."
        )
    return wish == "always" or (wish == "auto" and not native)


def _native(mode: Mode, device: torch.device) -> bool:
    if device.type == "cpu":
        return mode.matmul == "bf16"
    if device.type == "cuda" and mode.matmul in ("tf32", "bf16"):
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return True


@contextmanager
def float32_matmuls(mode: Mode, *, emulate: bool) -> Iterator[None]:
    """Set how FP32 operands are multiplied in matmul, conv and rnn, and put the old settings back.

    PyTorch's default is TF32 for conv and rnn on Ampere and newer, so "fp32" has to ask for IEEE. One API only
    (torch.backends.*.fp32_precision): reading the older allow_tf32 after setting this one raises RuntimeError.
    """
    wanted = "tf32" if mode.matmul == "tf32" and not emulate else "ieee"
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = wanted
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
