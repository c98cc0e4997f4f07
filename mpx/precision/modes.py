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


SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


@contextmanager
def float32_matmuls(mode: Mode, *, emulate: bool) -> Iterator[None]:
    """Set how FP32 operands are multiplied in matmul, conv and rnn, and put the old settings back.

    PyTorch's default is TF32 for conv and rnn on Ampere and newer, so "fp32" has to ask for IEEE.
    """
    before = [switch.fp32_precision for switch in SWITCHES]
    try:
        _set(["tf32" if mode.matmul == "tf32" and not emulate else "ieee"] * 3)
        yield
    finally:
        _set(before)


def _set(values: list[str]) -> None:
    """fp32_precision says what is meant; the older allow_tf32 is set first to agree with it, because Lightning and torch.compile
    still read that one, and PyTorch raises RuntimeError on reading it where the two differ."""
    torch.backends.cuda.matmul.allow_tf32 = values[0] == "tf32"
    torch.backends.cudnn.allow_tf32 = values[1] == "tf32"
    for switch, value in zip(SWITCHES, values, strict=True):
        switch.fp32_precision = value
