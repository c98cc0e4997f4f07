"""The precision modes, and whether a device can run one."""

import platform
from dataclasses import dataclass
from typing import Literal

import torch

from mpx.errors import UserError
from mpx.private.torch_kernels import cpu_multiplies_bf16

Nearest = Literal["32-true", "16-mixed", "16-true", "bf16-mixed", "bf16-true"]
KINDS = ("linear", "matmul", "conv", "rnn", "bmm", "attention")
# compute capability of a CUDA device
NEEDS = {"tf32": (8, 0), "bf16": (8, 0), "fp8_e4m3": (8, 9), "fp8_e5m2": (8, 9), "int8": (7, 5)}


@dataclass(frozen=True)
class Mode:
    """The formats in which each kind of operation multiplies. Sums inside a product are FP32 in every mode.

    autocast: the format to which autocast casts operands. weights: the format of weights and activations.
    master: the optimizer keeps FP32 weights, the model computes with copies of them in `weights`, and batch
    norm stays FP32. scaled: the loss is scaled, as precision.loss_scale says.
    """

    name: str
    linear: str  # linear layers whose products are FP8; those of all other linear layers count as matmul
    matmul: str  # products of two matrices
    conv: str
    rnn: str
    bmm: str  # batched products
    attention: str  # fused attention
    autocast: torch.dtype | None = None
    weights: torch.dtype = torch.float32
    master: bool = False
    scaled: bool = False

    @property
    def formats(self) -> dict[str, str]:
        """{kind: the format in which such an operation multiplies, forward and backward}"""
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def emulates(self) -> str:
        """The format for mpx.precision.emulate.Emulate."""
        return "fp8" if self.linear == "fp8_e4m3" else self.matmul

    @property
    def lightning(self) -> Nearest:
        """The nearest `Trainer(precision=…)` of Lightning's."""
        mixed = self.autocast is not None or self.master
        if self.matmul == "fp16":
            return "16-mixed" if mixed else "16-true"
        if self.matmul == "bf16":
            return "bf16-mixed" if mixed else "bf16-true"
        return "32-true"

    @property
    def narrowest(self) -> str:
        """The narrowest format: it decides whether a device can run this mode, and gradients pass through
        it.
        """
        return self.linear


def _mode(name: str, fmt: str, **others) -> Mode:
    return Mode(name, **dict.fromkeys(KINDS, fmt) | others)


MODES = {
    mode.name: mode
    for mode in (
        _mode("fp32", "fp32"),
        # the fused kernels for FP32 operands split them in three, to FP32's accuracy
        _mode("tf32", "tf32", attention="fp32"),
        _mode("amp", "fp16", autocast=torch.float16, scaled=True),
        _mode("amp_bf16", "bf16", autocast=torch.bfloat16),
        _mode("fp16_true", "fp16", weights=torch.float16, scaled=True),
        _mode("bf16_true", "bf16", weights=torch.bfloat16),
        _mode("fp8", "bf16", linear="fp8_e4m3", autocast=torch.bfloat16),
        _mode("o0", "fp32"),
        _mode("o1", "fp16", autocast=torch.float16, scaled=True),
        _mode("o2", "fp16", weights=torch.float16, master=True, scaled=True),
        _mode("o3", "fp16", weights=torch.float16, scaled=True),
    )
}


def emulated(mode: Mode, device: torch.device, requested: str) -> bool:
    """Whether `mode` is emulated on `device`: computed in FP32 and rounded to its format. requested: auto,
    always or never.

    auto emulates formats that the device lacks: TF32 and FP8 on CPUs and on GPUs without them, BF16 on GPUs
    older than Ampere. On CPUs it also emulates formats for which they have no instructions, since PyTorch is
    then far slower than in FP32: FP16, and BF16 on some CPUs.
    Raises UserError if the device lacks the format and requested is never.
    """
    if mode.narrowest == "fp32":
        return False
    if requested == "never" and (reason := lacking(mode, device)) is not None:
        raise UserError(
            f"precision.emulate=never: {reason}. Use precision.emulate=auto or another precision=."
        )
    return requested == "always" or (requested == "auto" and not _native(mode.narrowest, device))


def lacking(mode: Mode, device: torch.device) -> str | None:
    """Why `device` cannot compute in the mode's format at all; None if it can, even slowly."""
    slow = device.type == "cpu" and mode.narrowest in ("fp16", "bf16")
    name = "CPU" if device.type == "cpu" else "GPU"
    return None if slow or _native(mode.narrowest, device) else f"this {name} has no {mode.narrowest.upper()}"


def remedy(mode: Mode, optimizer: str | None) -> str:
    """Advice for a loss that became infinite or NaN. optimizer: None for a module that brings its own."""
    if mode.weights == torch.float16 and not mode.master and optimizer == "adamw":
        return (
            f"precision={mode.name} keeps AdamW's squares of gradients in FP16, where those of gradients "
            "below 2^-12 vanish and its steps grow without bound. Use optimizer=sgd, or precision=o2, "
            "which keeps them in FP32."
        )
    if mode.weights == torch.float16 and not mode.master and optimizer is None:
        return (
            f"precision={mode.name} keeps the optimizer's state in FP16, where Adam's eps and squares of "
            "small gradients vanish. Use precision=amp, which keeps it in FP32, or an optimizer without "
            "squares."
        )
    tries = "Try a lower learning rate"
    if optimizer is not None:
        tries += " (optimizer.lr), a longer warm-up (schedule.warmup)"
    if mode.narrowest == "fp32":
        return f"{tries} or clipped gradients (trainer.gradient_clip_val=1.0)."
    return (
        f"{tries}, clipped gradients (trainer.gradient_clip_val=1.0), or precision=fp32 to see whether "
        "the format is at fault."
    )


def _native(fmt: str, device: torch.device) -> bool:
    if device.type == "cpu":
        return fmt == "bf16" and cpu_has_bf16()
    return device.type != "cuda" or fmt not in NEEDS or torch.cuda.get_device_capability(device) >= NEEDS[fmt]


def lacks_instructions(fmt: str, name: str = "CPU") -> str:
    """Why `fmt` is slow on a device of this kind or name."""
    who = "most CPUs have" if (name, fmt) == ("CPU", "fp16") else f"this {name} has"
    return f"{who} no instructions for {fmt.upper()}"


def cpu_has_bf16() -> bool:
    """Whether this CPU has instructions for BF16, and oneDNN uses them.

    Without them, BF16 is several times slower than its emulation.
    """
    if not torch.backends.mkldnn.is_available() or not cpu_multiplies_bf16():
        return False
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return torch.cpu.get_capabilities().get("avx512_bf16", False)  # oneDNN asks for AVX-512 only
