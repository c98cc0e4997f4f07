"""The same emulation with the hardware's own sums: how much of the distance to the hardware do they explain?

Nothing is rounded otherwise than in mpx's emulation. What changes is the order and the width in which
products are summed up. Sums come from torch's own products on Tensor Cores, or, for kernels that torch does
not choose by itself, from `in_steps`, a model of what one Tensor Core instruction after another makes of a
sum.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import unfold
from torch.utils._python_dispatch import TorchDispatchMode

from mpx.precision.formats import ROUND
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls, tf32_products

aten = torch.ops.aten
PARTS = (1, 4, 16, 64)  # in which a convolution's weight gradient is summed up
TAKES = {"fp16": 16, "bf16": 16, "tf32": 8}  # products that one instruction adds to a sum


@dataclass(frozen=True)
class Hardware:
    name: str
    only_sums: bool  # differs in nothing but the order of sums by torch
    enter: Callable[[str], ExitStack]  # of the format


def variants(operation: str, fmt: str) -> list[Hardware]:
    found = [Hardware("Tensor Core sums", True, lambda fmt: stack(tensor_cores(fmt)))]
    if operation == "conv" and fmt in ("fp16", "bf16"):
        found += [
            Hardware(
                f"weight gradient summed in {parts} parts",
                True,
                lambda fmt, parts=parts: stack(tensor_cores(fmt, parts)),
            )
            for parts in PARTS
        ]
        found.append(
            Hardware(
                "weight gradient summed in steps",
                False,
                lambda fmt: stack(tensor_cores(fmt, 1, in_steps=True)),
            )
        )
    return found


def stack(*contexts) -> ExitStack:
    entered = ExitStack()
    for context in contexts:
        entered.enter_context(context)
    return entered


@contextmanager
def tensor_cores(fmt: str, parts: int = 0, *, in_steps: bool = False) -> Iterator[None]:
    """Products of operands that the format holds exactly run on Tensor Cores, in FP16 or BF16 with an FP32
    result, else in TF32.

    parts: convolutions' weight gradients are products too, of so many parts along the sum. in_steps: as
    `in_steps` computes them, where they are weight gradients or TF32.
    """
    with tf32_products(), _Sums(fmt, parts, in_steps):  # the first is for convolutions
        yield


def in_steps(a: torch.Tensor, b: torch.Tensor, takes: int) -> torch.Tensor:
    """a [m, k] @ b [k, n] as one Tensor Core adds it up: `takes` products at a time, exact, and the FP32 sum
    so far are each cut off at two bits below the last of the largest among them, added, and the sum is cut
    off to FP32. Found by comparing bits with an H200; the manner is that of earlier cards (Fasi et al. 2021,
    doi:10.7717/peerj-cs.330).
    """
    missing = -a.shape[1] % takes
    a, b = (
        torch.nn.functional.pad(a, (0, missing)).double(),
        torch.nn.functional.pad(b, (0, 0, 0, missing)).double(),
    )
    total = torch.zeros(1, len(a), b.shape[1], dtype=torch.float64, device=a.device)
    for rows, columns in zip(a.t().split(takes), b.split(takes), strict=True):
        terms = torch.cat([rows[:, :, None] * columns[:, None], total])
        total = cut_off(cut_off(terms, terms.abs().amax(0), 26).sum(0, keepdim=True))
    return total[0].float()


def cut_off(values: torch.Tensor, largest: torch.Tensor | None = None, bits: int = 24) -> torch.Tensor:
    """float64 values towards zero to multiples of the last of so many bits of `largest`, or of each value
    itself.
    """
    exponent = torch.frexp(values if largest is None else largest).exponent.clamp_min(-900)
    unit = torch.exp2((exponent - bits).double())
    return torch.trunc(values / unit) * unit


class _Sums(TorchDispatchMode):
    def __init__(self, fmt: str, parts: int, in_steps: bool):
        super().__init__()
        self.narrow, self.parts = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(fmt), parts
        self.takes = TAKES[fmt] if in_steps else None
        self.held = ROUND[fmt if self.narrow else "tf32"]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.convolution_backward.default and self.parts:
            input_gradient, _, bias_gradient = func(*args[:10], [args[10][0], False, args[10][2]])
            return (
                input_gradient,
                self._weight_gradient(*args[:3], stride=args[4], padding=args[5]),
                bias_gradient,
            )
        if func not in (aten.mm.default, aten.bmm.default) or args[0].dtype != torch.float32:
            return func(*args, **(kwargs or {}))
        exact = all(torch.equal(self.held(operand), operand) for operand in args)
        if exact and self.takes and func is aten.mm.default and not self.narrow:
            return in_steps(*args, self.takes)
        if exact and self.narrow:
            return self._product(torch.mm if func is aten.mm.default else torch.bmm, *args)
        with tf32_products() if exact else float32_matmuls(MODES["fp32"], emulate=True):
            return func(*args)

    def _product(self, product, *operands):
        return product(*(operand.to(self.narrow) for operand in operands), out_dtype=torch.float32)

    def _weight_gradient(self, gradient, x, weight, *, stride, padding):
        """The sum over images and places, [O, N · L] × [N · L, C · kernel], in equal parts one after
        another.
        """
        patches = unfold(x, weight.shape[2:], stride=stride, padding=padding).transpose(1, 2).flatten(0, 1)
        rows = gradient.flatten(2).transpose(1, 2).flatten(0, 1)
        if self.takes:
            return in_steps(rows.t(), patches, self.takes).view_as(weight)
        size = len(rows) // self.parts
        found = [
            self._product(torch.mm, r.t(), p)
            for r, p in zip(rows.split(size), patches.split(size), strict=True)
        ]
        return sum(found[1:], found[0]).view_as(weight)
