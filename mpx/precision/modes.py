"""The table of precision modes, and whether a device can run one."""

import platform
from dataclasses import dataclass

import torch

from mpx.errors import UserError
from mpx.private.torch_kernels import cpu_multiplies_bf16

KINDS = ("linear", "matmul", "conv", "rnn", "bmm", "attention")


@dataclass(frozen=True)
class Mode:
    """Formats are those in which each kind of operation multiplies. Sums inside a product are FP32 in every mode.

    autocast: the format to which operations cast their operands as they need it. weights: the format of all weights and activations,
    where it is not FP32. master: the optimizer keeps FP32 weights, of which the model uses a copy in `weights`; batch norm stays FP32.
    scaled: whether the loss is scaled, as precision.loss_scale says.
    """

    name: str
    linear: str  # linear layers; told apart from other products in fp8 alone
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
        return {kind: getattr(self, kind) for kind in KINDS}

    def promises(self, kind: str) -> tuple[str, ...]:
        """Formats in which an operation of `kind` may run, forward and backward."""
        promised = self.formats[kind]
        return (promised, "fp8_e5m2") if promised == "fp8_e4m3" else (promised,)

    @property
    def emulates(self) -> str:
        """What mpx.precision.emulate.Emulate is asked for."""
        return "fp8" if self.linear == "fp8_e4m3" else self.matmul

    @property
    def gradients(self) -> str:
        """The format that gradients pass through."""
        return "fp8_e5m2" if self.linear == "fp8_e4m3" else self.matmul

    @property
    def needs(self) -> str:
        """The rarest format: the one that decides whether a device can run this mode."""
        return self.linear


def _mode(name: str, fmt: str, **others) -> Mode:
    return Mode(name, **dict.fromkeys(KINDS, fmt) | others)


HALF, BRAIN = torch.float16, torch.bfloat16
MODES = {
    mode.name: mode
    for mode in (
        _mode("fp32", "fp32"),
        _mode("tf32", "tf32", attention="fp32"),  # the fused kernels for FP32 operands split them in three, to FP32's accuracy
        _mode("amp", "fp16", autocast=HALF, scaled=True),
        _mode("amp_bf16", "bf16", autocast=BRAIN),
        _mode("fp16_true", "fp16", weights=HALF, scaled=True),
        _mode("bf16_true", "bf16", weights=BRAIN),
        _mode("fp8", "bf16", linear="fp8_e4m3", autocast=BRAIN),
        _mode("o0", "fp32"),
        _mode("o1", "fp16", autocast=HALF, scaled=True),
        _mode("o2", "fp16", weights=HALF, master=True, scaled=True),
        _mode("o3", "fp16", weights=HALF, scaled=True),
    )
}


def emulated(mode: Mode, device: torch.device, wish: str) -> bool:
    """Whether `mode` is rounded to its format and computed in FP32 on `device`. wish: auto, always or never.

    auto emulates what the device lacks: TF32 and FP8 on CPUs and on GPUs without them, BF16 on GPUs older than Ampere; and what PyTorch has
    on CPUs but runs up to hundreds of times slower than FP32: FP16, and BF16 where the CPU has no instructions for it.
    Raises UserError for a format neither there nor emulated.
    """
    if mode.needs == "fp32":
        return False
    native = _native(mode.needs, device)
    slow = device.type == "cpu" and mode.needs in ("fp16", "bf16")
    if wish == "never" and not native and not slow:
        raise UserError(
            f"precision.emulate=never: this {device.type} has no {mode.needs.upper()}. Use precision.emulate=auto or another precision=."
        )
    return wish == "always" or (wish == "auto" and not native)


def remedy(mode: Mode, optimizer: str) -> str:
    """What to try when the loss became infinite or NaN."""
    if mode.weights == torch.float16 and not mode.master and optimizer == "adamw":
        return (
            f"precision={mode.name} keeps AdamW's squares of gradients in FP16, where those of gradients below 2^-12 vanish and its steps "
            "grow without bound. Use optimizer=sgd, or precision=o2, which keeps them in FP32."
        )
    tries = "Try a lower optimizer.lr, a longer schedule.warmup"
    if mode.needs == "fp32":
        return f"{tries} or trainer.gradient_clip_val=1.0."
    return f"{tries}, trainer.gradient_clip_val=1.0, or precision=fp32 to see whether the format is at fault."


def _native(fmt: str, device: torch.device) -> bool:
    if device.type == "cpu":
        return fmt == "bf16" and cpu_has_bf16()
    least = {"tf32": (8, 0), "bf16": (8, 0), "fp8_e4m3": (8, 9)}.get(fmt)
    return least is None or device.type != "cuda" or torch.cuda.get_device_capability(device) >= least


def cpu_has_bf16() -> bool:
    """Whether this CPU has instructions for BF16, and oneDNN uses them.

    Without them products of 512×512 matrices ran at 39 GFLOP/s (AVX-512) and 2 (AVX2), in FP32 at 185, with AMX at 1,435 (Intel Xeon,
    torch 2.15, one thread, ONEDNN_MAX_CPU_ISA), BERT-small at 7 samples/s, emulated at 29; and with AVX2 oneDNN has no LSTM.
    """
    if not torch.backends.mkldnn.is_available() or not cpu_multiplies_bf16():
        return False
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return torch.cpu.get_capabilities().get("avx512_bf16", False)  # there oneDNN is content with AVX-512
