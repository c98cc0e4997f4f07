"""Matrix products in each number format: which ones this device has, their operands, and a check against
float64 before timing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from mpx.precision.formats import FORMATS
from mpx.precision.modes import MODES, NEEDS
from mpx.precision.switches import float32_matmuls
from mpx.private.torch_kernels import int_mm, scaled_mm

PRODUCT_FORMATS = (*FORMATS, "int8")
ON_CPU = {
    "tf32": "CPUs have no TF32",
    "fp8_e4m3": "CPUs have no FP8 arithmetic",
    "fp8_e5m2": "CPUs have no FP8 arithmetic",
}
CHECKED_ROWS = 512  # of the product; they contain every column and the whole inner dimension


class WrongProductError(ArithmeticError):
    """A product differs more from its float64 reference than its format explains, so that its speed means
    nothing.
    """


@dataclass(frozen=True)
class Product:
    """a: [m, k] and b: [k, n], both in the format.

    `call()` returns a·b, as int32 from int8, as BF16 from FP8, else in the type of the operands.
    """

    fmt: str
    a: Tensor
    b: Tensor
    call: Callable[[], Tensor]


def missing(fmt: str, device: torch.device) -> str | None:
    """Why `device` has no product in `fmt`; None where it has one."""
    if device.type != "cuda":
        return ON_CPU.get(fmt)
    have, need = torch.cuda.get_device_capability(device), NEEDS.get(fmt, (0, 0))
    return None if have >= need else "needs compute capability {}.{}, this GPU has {}.{}".format(*need, *have)


def product(fmt: str, n: int, device: torch.device) -> Product:
    """A product of square matrices. n: a multiple of 16, which FP8 and int8 products need."""
    return multiply(
        fmt, random_matrix(fmt, (n, n), device, seed=0), random_matrix(fmt, (n, n), device, seed=1)
    )


def linear(fmt: str, tokens: int, outputs: int, inputs: int, device: torch.device) -> Product:
    """The product of a linear layer: activations [tokens, inputs] by a weight [outputs, inputs], which is
    read transposed.
    """
    x, weight = (
        random_matrix(fmt, (tokens, inputs), device, seed=0),
        random_matrix(fmt, (outputs, inputs), device, seed=1),
    )
    return multiply(fmt, x, weight.t())


def random_matrix(fmt: str, shape: Sequence[int], device: torch.device, seed: int) -> Tensor:
    """Random values in `fmt`, because zeros take less power and so run faster. For FP8 they are FP32, which
    `multiply` rounds.
    """
    random = torch.Generator(device).manual_seed(seed)
    if fmt == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device=device, generator=random)
    values = torch.randn(*shape, device=device, generator=random)
    return values if fmt.startswith("fp8") else values.to(FORMATS[fmt].dtype)


def multiply(fmt: str, a: Tensor, b: Tensor) -> Product:
    """a: [m, k] and b: [k, n], as `random_matrix` returns them."""
    if fmt == "int8":
        b = _by_columns(b)
        return Product(fmt, a, b, lambda: int_mm(a, b))
    if fmt.startswith("fp8"):
        return _scaled(fmt, a, b)
    return Product(fmt, a, b, lambda: torch.mm(a, b))


def _scaled(fmt: str, a: Tensor, b: Tensor) -> Product:
    """The products of FP8 training as in arXiv:2209.05433: E4M3 by E4M3, with fast accumulation, of its
    forward pass, and E5M2 gradients by E4M3 weights, with full FP32 sums, of its backward pass. cuBLASLt has
    no product of two E5M2 matrices.
    """
    a, b = a.to(FORMATS[fmt].dtype), _by_columns(b.to(torch.float8_e4m3fn))
    one = torch.ones((), device=a.device)
    return Product(fmt, a, b, lambda: scaled_mm(a, b, one, one, fast=fmt == "fp8_e4m3"))


def _by_columns(b: Tensor) -> Tensor:
    """The same matrix in column-major order, in which 8-bit Tensor Core products read the second operand."""
    return b.t().contiguous().t()


def float32_as(fmt: str) -> AbstractContextManager[None]:
    """A context manager: FP32 operands on CUDA multiply in TF32 where that is `fmt`, else in IEEE FP32."""
    return float32_matmuls(MODES["tf32" if fmt == "tf32" else "fp32"], emulate=False)


def tolerance(fmt: str, n: int) -> float:
    """The relative error that rounding explains: of operands or results to the format, and of a sum of n
    products in FP32 (for FP64: in FP64), whose rounding errors add up as a random walk.

    Rounding to the format takes about 0.3 ε of the 2 ε that are allowed.
    """
    if fmt == "int8":
        return 0.0  # int32 sums are exact
    rounded = FORMATS["bf16" if fmt.startswith("fp8") else fmt].epsilon
    return 2 * rounded + FORMATS["fp64" if fmt == "fp64" else "fp32"].epsilon * sqrt(n) / 2


@torch.no_grad()
def relative_error(made: Product, out: Tensor | None = None) -> float:
    """‖out − ref‖ ÷ ‖ref‖ over random rows, where ref is a·b in float64, from the operands as they are in the
    format.

    out: the result of a call; None: call it here. Raises WrongProductError where the error is more than the
    format explains.
    """
    rows, inner = made.a.shape
    out = made.call() if out is None else out
    if out.shape != (shape := (rows, made.b.shape[1])):
        raise WrongProductError(f"wrong product: of shape {tuple(out.shape)}, not {tuple(shape)}")
    picked = torch.randperm(rows, generator=torch.Generator().manual_seed(1))[:CHECKED_ROWS].to(made.a.device)
    reference = _picked(made.a, picked).double() @ made.b.double()
    result = _picked(out, picked)
    error = float((result.double() - reference).norm() / reference.norm())
    if not error <= tolerance(made.fmt, inner):
        raise WrongProductError(
            f"wrong product: relative error {error:.1e}, more than {tolerance(made.fmt, inner):.1e}"
        )
    return error


def _picked(matrix: Tensor, rows: Tensor) -> Tensor:
    """FP8 rows are selected as bytes, because PyTorch cannot index FP8 tensors."""
    return matrix[rows] if matrix.element_size() > 1 else matrix.view(torch.uint8)[rows].view(matrix.dtype)
