"""The same emulation with the hardware's own sums and functions: how much of the distance to the hardware do they explain?

Nothing is rounded otherwise than in mpx's emulation. What changes is the order and the width in which products are summed up, and, for
LSTMs, who computes tanh and the exponential.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import unfold
from torch.utils._python_dispatch import TorchDispatchMode

from mpx.precision import lstm
from mpx.precision.modes import MODES
from mpx.precision.rounding import ROUND
from mpx.precision.squash import tanh_approx
from mpx.precision.switches import float32_matmuls, tf32_products

aten = torch.ops.aten
PARTS = (1, 4, 16, 64)  # in which a convolution's weight gradient is summed up
TANH = 'template <typename T> T f(T x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }'
SIGMOID = "template <typename T> T f(T x) { return __fdividef(1.f, 1.f + __expf(-x)); }"


@dataclass(frozen=True)
class Hardware:
    name: str
    only_sums: bool
    enter: Callable[[str], ExitStack]  # of the format


def variants(operation: str, fmt: str) -> list[Hardware]:
    found = [Hardware("Tensor Core sums", True, lambda fmt: stack(tensor_cores(fmt)))]
    if operation == "conv" and fmt in ("fp16", "bf16"):
        found += [
            Hardware(f"weight gradient summed in {parts} parts", True, lambda fmt, parts=parts: stack(tensor_cores(fmt, parts)))
            for parts in PARTS
        ]
    if operation == "lstm":
        found.append(Hardware("and the GPU's functions", False, lambda fmt: stack(tensor_cores(fmt), functions())))
    if operation == "lstm" and fmt == "tf32":
        found.append(Hardware("and one product in FP32", False, lambda fmt: stack(tensor_cores(fmt), functions(), first_step_in_fp32())))
    return found


def stack(*contexts) -> ExitStack:
    entered = ExitStack()
    for context in contexts:
        entered.enter_context(context)
    return entered


@contextmanager
def tensor_cores(fmt: str, parts: int = 0) -> Iterator[None]:
    """Products of operands that the format holds exactly run on Tensor Cores, in FP16 or BF16 with an FP32 result, else in TF32.

    parts: convolutions' weight gradients are products too, of so many parts along the sum.
    """
    with tf32_products(), _Sums(fmt, parts):  # the first is for convolutions
        yield


class _Sums(TorchDispatchMode):
    def __init__(self, fmt: str, parts: int):
        super().__init__()
        self.narrow, self.parts = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(fmt), parts
        self.held = ROUND[fmt if self.narrow else "tf32"]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.convolution_backward.default and self.parts:
            input_gradient, _, bias_gradient = func(*args[:10], [args[10][0], False, args[10][2]])
            return input_gradient, self._weight_gradient(*args[:3], stride=args[4], padding=args[5]), bias_gradient
        if func not in (aten.mm.default, aten.bmm.default) or args[0].dtype != torch.float32:
            return func(*args, **(kwargs or {}))
        exact = all(torch.equal(self.held(operand), operand) for operand in args)
        if exact and self.narrow:
            return self._product(torch.mm if func is aten.mm.default else torch.bmm, *args)
        with tf32_products() if exact else float32_matmuls(MODES["fp32"], emulate=True):
            return func(*args)

    def _product(self, product, *operands):
        return product(*(operand.to(self.narrow) for operand in operands), out_dtype=torch.float32)

    def _weight_gradient(self, gradient, x, weight, *, stride, padding):
        """The sum over images and places, [O, N · L] × [N · L, C · kernel], in equal parts one after another."""
        patches = unfold(x, weight.shape[2:], stride=stride, padding=padding).transpose(1, 2).flatten(0, 1)
        rows = gradient.flatten(2).transpose(1, 2).flatten(0, 1)
        size = len(rows) // self.parts
        found = [self._product(torch.mm, r.t(), p) for r, p in zip(rows.split(size), patches.split(size), strict=True)]
        return sum(found[1:], found[0]).view_as(weight)


@contextmanager
def functions() -> Iterator[None]:
    """tanh.approx.f32 and the sigmoid as the GPU computes them, in place of our tables."""
    tanh, sigmoid = (torch.cuda.jiterator._create_jit_fn(code) for code in (TANH, SIGMOID))
    names, ours = ("STANDARD", "PERSISTENT", "STATIC"), {}
    for name in names:
        kernel = ours[name] = getattr(lstm, name)
        fields = {field: tanh for field in ("tanh", "tanh_last", "tanh_before") if getattr(kernel, field) is tanh_approx}
        setattr(lstm, name, replace(kernel, **fields))
    ours["sigmoid"], lstm.sigmoid = lstm.sigmoid, sigmoid
    try:
        yield
    finally:
        for name, value in ours.items():
            setattr(lstm, name, value)


@contextmanager
def first_step_in_fp32() -> Iterator[None]:
    """The first step's share of the recurrent weights' gradient from operands that nobody rounded: TF32 is allowed, and cuBLAS chooses."""
    ours = lstm.recurrent_gradient

    def gradient(d_gates, states, fmt):
        with float32_matmuls(MODES["fp32"], emulate=True):
            return d_gates[0].t() @ states[0] + ours(d_gates[1:], states[1:], fmt)

    lstm.recurrent_gradient = gradient
    try:
        yield
    finally:
        lstm.recurrent_gradient = ours
