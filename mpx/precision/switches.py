"""PyTorch's global switches: how FP32 operands are multiplied and 16-bit products are summed, and for which
settings compiled code is cached; and what TF32 needs besides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.compiler import config
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from mpx.precision.modes import KINDS, MODES, Mode, lacking

CUDNN: Any = torch.backends.cudnn
MKLDNN: Any = torch.backends.mkldnn
SWITCHES = (torch.backends.cuda.matmul, CUDNN.conv, CUDNN.rnn, MKLDNN.matmul, MKLDNN.conv, MKLDNN.rnn)
# of torch.backends.cuda.matmul
REDUCED = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")

ALIGNED = 4  # channels; cuDNN's TF32 kernels read 16 bytes at once
CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


@contextmanager
def float32_matmuls(mode: Mode, *, emulate: bool) -> Iterator[None]:
    """A context in which FP32 operands multiply as `mode` promises, and 16-bit products sum in FP32.

    PyTorch's defaults are TF32 for conv and rnn from Ampere on, and partial sums in 16 bits.
    """
    matmul = torch.backends.cuda.matmul
    reduced = {name: getattr(matmul, name) for name in REDUCED}
    try:
        for name in REDUCED:
            setattr(matmul, name, False)
        with _on_a_gpu("tf32" if mode.matmul == "tf32" and not emulate else "ieee"):
            yield
    finally:
        for name, old in reduced.items():
            setattr(matmul, name, old)


def multiplied_now(device: torch.device) -> dict[str, str]:
    """The format in which FP32 operands multiply on `device` at this moment, by the kinds of
    mpx.precision.modes.
    """
    if lacking(MODES["tf32"], device) is not None:
        return dict.fromkeys(KINDS, "fp32")
    matmul, conv, rnn = ("tf32" if switch.fp32_precision == "tf32" else "fp32" for switch in SWITCHES[:3])
    return dict.fromkeys(KINDS, matmul) | {"conv": conv, "rnn": rnn, "attention": "fp32"}


@contextmanager
def searching(on: bool = True) -> Iterator[None]:
    """A context in which cuDNN times its algorithms for a convolution that it first sees, and keeps the
    fastest; or in which it does not.
    """
    before, CUDNN.benchmark = CUDNN.benchmark, on
    try:
        yield
    finally:
        CUDNN.benchmark = before


@contextmanager
def tf32_products() -> Iterator[None]:
    """A context in which FP32 operands multiply in TF32. cuDNN does not search for algorithms, which would
    need gigabytes of memory.
    """
    with searching(False), _on_a_gpu("tf32"):
        yield


@contextmanager
def _on_a_gpu(value: str) -> Iterator[None]:
    """A context in which fp32_precision is `value` on a GPU and ieee on a CPU."""
    before = [switch.fp32_precision for switch in SWITCHES]
    try:
        _set([value] * 3 + ["ieee"] * 3)
        yield
    finally:
        _set(before)


def _set(values: list[str]) -> None:
    """Set fp32_precision, and before it the older allow_tf32, which Lightning and torch.compile read.

    If the two differ, PyTorch raises RuntimeError when the older one is read.
    """
    torch.backends.cuda.matmul.allow_tf32 = values[0] == "tf32"
    torch.backends.cudnn.allow_tf32 = values[1] == "tf32"
    for switch, value in zip(SWITCHES, values, strict=True):
        switch.fp32_precision = value


def keep_apart(**parts: object) -> None:
    """From now on, torch.compile caches code on the disk for these values, as in `autocast=torch.float16`.

    The key of its cache lacks them, and code for others would be reused without an error:

    - the CPU's instructions. Code for a CPU with AVX-512 is reused on one with AVX2, where it leaves out half
      of the values (torch 2.11, 2.14).
    - autocast's format. After a run in BF16, a run in FP16 computes in BF16 (torch 2.11 and 2.12; fixed by
      https://github.com/pytorch/pytorch/pull/181564).
    """
    others = [word for word in config.cache_key_tag.split() if word.partition("=")[0] not in parts]
    words = [f"{name}={value}".replace(" ", "_") for name, value in parts.items()]
    tag = " ".join(sorted([*others, *words]))  # in one order, whoever asks first
    if tag != config.cache_key_tag:  # the precision plugin asks at every step
        config.cache_key_tag = tag


class AlignedChannels(TorchFunctionMode):
    """Under this mode, channels of convolutions are padded with zeros to a multiple of 4, such as an image's
    3, so that the backward pass runs on Tensor Cores, too.

    Otherwise cuDNN computes the weight gradient of a network's first layer in FP32 (experiments/audit).
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in CONVOLUTIONS or len(args) < 2:
            return func(*args, **(kwargs or {}))
        x, weight, *others = args
        missing, dimensions = -weight.shape[1] % ALIGNED, weight.dim() - 2
        # neither groups nor single samples
        if missing and x.dim() == weight.dim() and x.shape[1] == weight.shape[1]:
            x, weight = (pad(value, (0, 0) * dimensions + (0, missing)) for value in (x, weight))
        return func(x, weight, *others, **(kwargs or {}))
