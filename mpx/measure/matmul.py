"""Square matrix products in each number format: which this machine can do, operands, and a check against float64 before any timing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from mpx.precision.formats import FORMATS
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls

NAMES = (*FORMATS, "int8")
NEEDS = {"tf32": (8, 0), "bf16": (8, 0), "fp8_e4m3": (8, 9), "fp8_e5m2": (8, 9), "int8": (7, 5)}  # CUDA compute capability
ON_CPU = {
    "tf32": "CPUs have no TF32",
    "fp8_e4m3": "CPUs have no FP8 arithmetic",
    "fp8_e5m2": "CPUs have no FP8 arithmetic",
}
CHECKED_ROWS = 512  # of the product: every column and the whole inner dimension are in them


class WrongProductError(ArithmeticError):
    """A product that is further from its float64 reference than its format explains; its speed would mean nothing."""


@dataclass(frozen=True)
class Product:
    """a: [n, n], b: [n, n], both in the format; `call()` gives a·b: int32 from int8, BF16 from FP8, else in the operands' own type."""

    fmt: str
    a: Tensor
    b: Tensor
    call: Callable[[], Tensor]


def missing(fmt: str, device: torch.device) -> str | None:
    """Why `device` has no product in `fmt`, or None when it has."""
    if device.type != "cuda":
        return ON_CPU.get(fmt)
    have, need = torch.cuda.get_device_capability(device), NEEDS.get(fmt, (0, 0))
    return None if have >= need else "needs compute capability {}.{}, this GPU has {}.{}".format(*need, *have)


def product(fmt: str, n: int, device: torch.device) -> Product:
    """Random operands, since zeros take less power and so run faster. n: a multiple of 16, which FP8 and int8 products need."""
    random = torch.Generator(device).manual_seed(0)
    if fmt == "int8":
        a, b = (torch.randint(-128, 128, (n, n), dtype=torch.int8, device=device, generator=random) for _ in range(2))
        b = _by_columns(b)
        return Product(fmt, a, b, lambda: torch._int_mm(a, b))
    a, b = (torch.randn(n, n, device=device, generator=random) for _ in range(2))
    if fmt.startswith("fp8"):
        return _scaled(fmt, a, b)
    a, b = a.to(FORMATS[fmt].dtype), b.to(FORMATS[fmt].dtype)
    return Product(fmt, a, b, lambda: torch.mm(a, b))


def _scaled(fmt: str, a: Tensor, b: Tensor) -> Product:
    """As FP8 training multiplies: E4M3 forward with fast accumulation, E5M2 gradients by E4M3 weights with full FP32 sums.

    cuBLASLt has no product of two E5M2 matrices.
    """
    a, b = a.to(FORMATS[fmt].dtype), _by_columns(b.to(torch.float8_e4m3fn))
    one = torch.ones((), device=a.device)
    options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": fmt == "fp8_e4m3"}
    return Product(fmt, a, b, lambda: torch._scaled_mm(a, b, **options))


def _by_columns(b: Tensor) -> Tensor:
    """The same matrix with its columns in one piece each, as 8-bit Tensor Core products read the second operand."""
    return b.t().contiguous().t()


def float32_as(fmt: str) -> AbstractContextManager[None]:
    """A context in which FP32 operands on CUDA multiply as IEEE FP32, or as TF32 where that is the format."""
    return float32_matmuls(MODES["tf32" if fmt == "tf32" else "fp32"], emulate=False)


def tolerance(fmt: str, n: int) -> float:
    """Relative error that rounding explains: n sums whose errors add up as a random walk, in the format of the result."""
    if fmt == "int8":
        return 0.0  # int32 sums are exact
    return FORMATS["bf16" if fmt.startswith("fp8") else fmt].epsilon * sqrt(n) / 2


@torch.no_grad()
def relative_error(made: Product) -> float:
    """‖out − ref‖ ÷ ‖ref‖ over random rows, with ref = a·b in float64 from the operands as they are in the format.

    Raises WrongProductError where it is more than the format explains.
    """
    n = made.a.shape[0]
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(1))[:CHECKED_ROWS].to(made.a.device)
    reference = made.a.double()[rows] @ made.b.double()
    error = float((made.call()[rows].double() - reference).norm() / reference.norm())
    if not error <= tolerance(made.fmt, n):
        raise WrongProductError(f"wrong product: relative error {error:.1e}, more than {tolerance(made.fmt, n):.1e}")
    return error
