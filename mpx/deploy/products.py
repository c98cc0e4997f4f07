"""Products of rows with a weight, by each kernel of a GPU: [n, in] -> [n, out], contiguous.

`prepare` converts a layer's input, of any shape, to the operand's format. `forward` multiplies its rows. They
are separate because a convolution copies its input in between, and INT8 is half as much to copy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpx.deploy.algorithms import Problem, fastest
from mpx.precision.formats import FORMATS
from mpx.private.torch_kernels import compress_2of4, int_mm, mm_2of4, scaled_mm

INT8_LARGEST = 127  # symmetric: -128 is not used
FP8 = FORMATS["fp8_e4m3"]


@dataclass(frozen=True)
class Epilogue:
    """How a 2:4 product becomes [rows, out] with the bias added.

    transposed: cuSPARSELt writes the result transposed; otherwise it is transposed afterwards. bias:
    cuSPARSELt adds the bias.
    """

    transposed: bool
    bias: bool

    def __str__(self) -> str:
        return f"{'written' if self.transposed else 'turned'}{', bias within' if self.bias else ''}"


EPILOGUES = (Epilogue(True, True), Epilogue(True, False), Epilogue(False, False))


class Product(nn.Module):
    """Multiplies rows with a weight. weight: [out, in]; bias: [out] or None; scale: of the product, if its
    operands have some.
    """

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out = len(weight)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("scale", None)

    def prepare(self, x: Tensor) -> Tensor:
        return x


def int8_rows(weight: Tensor, largest: int = INT8_LARGEST) -> tuple[Tensor, Tensor]:
    """(int8 [out, in], FP32 [out]): the matrix as integers up to `largest`, and the scale of each row."""
    scale = weight.float().abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / largest
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def fp8_matrix(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(E4M3 [out, in], FP32 scalar): the matrix in FP8, and its scale."""
    scale = weight.float().abs().max().clamp_min(torch.finfo(torch.float32).tiny) / FP8.largest
    return (weight.float() / scale).to(FP8.dtype), scale


class Quantised(Product):
    """INT8: one scale for each row of the weight, one for all activations. Source: Wu et al.,
    arXiv:2004.09602.

    largest: the magnitude of activations that becomes 127; larger ones are clipped. step: the value of the
    integer 1. The result has the dtype of `weight`.
    """

    inverse: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, largest: float):
        values, scale = int8_rows(weight)
        super().__init__(values, None if bias is None else bias.float())
        self.dtype = weight.dtype
        self.step = largest / INT8_LARGEST
        self.register_buffer("inverse", torch.tensor(1 / self.step, device=weight.device))
        self.register_buffer("scale", scale * self.step)  # FP32 [out]: of the product

    def prepare(self, x: Tensor) -> Tensor:
        return (x.float() * self.inverse).round().clamp(-INT8_LARGEST, INT8_LARGEST).to(torch.int8)

    def forward(self, rows: Tensor) -> Tensor:
        found = int_mm(rows, self.weight.t()).float() * self.scale
        return (found if self.bias is None else found + self.bias).to(self.dtype)


class Fp8(Product):
    """FP8 E4M3 with one scale for the weight and one for all activations. Source: Micikevicius et al.,
    arXiv:2209.05433.
    """

    inverse: Tensor
    step: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, largest: float):
        values, scale = fp8_matrix(weight)
        super().__init__(values, None if bias is None else bias.to(torch.bfloat16))
        step = torch.tensor(largest / FP8.largest, device=weight.device)
        self.register_buffer("inverse", 1 / step)
        self.register_buffer("step", step)
        self.register_buffer("scale", scale)

    def prepare(self, x: Tensor) -> Tensor:
        return (x.float() * self.inverse).clamp(-FP8.largest, FP8.largest).to(FP8.dtype)

    def forward(self, rows: Tensor) -> Tensor:
        return scaled_mm(rows, self.weight.t(), self.step, self.scale, fast=True, bias=self.bias)


class Product2of4(Product):
    """Multiplies with a 2:4 weight. The first call with each number of rows searches for the algorithm."""

    def __init__(self, weight: Tensor, bias: Tensor | None, epilogue: Epilogue):
        super().__init__(weight, bias)
        self.dtype, self.inputs = weight.dtype, weight.shape[1]
        self._pack(epilogue)

    def _pack(self, epilogue: Epilogue) -> None:
        self.epilogue, self.operand = epilogue, str(self.weight.dtype).removeprefix("torch.")
        self.weight = compress_2of4(self.weight)
        self.ids: dict[int, int] = {}  # of algorithms, by the number of rows

    def forward(self, rows: Tensor) -> Tensor:
        count = len(rows)
        if count not in self.ids:
            within = self.bias is not None and self.epilogue.bias
            result = str(self.dtype).removeprefix("torch.")
            problem = Problem(
                self.operand,
                result,
                self.out,
                self.inputs,
                count,
                within,
                self.scale is not None,
                self.epilogue.transposed,
            )
            self.ids[count] = fastest(problem)
        return product_2of4(
            rows,
            self.weight,
            self.bias,
            self.scale,
            self.dtype,
            self.out,
            self.ids[count],
            self.epilogue.transposed,
            self.epilogue.bias,
        )


class Quantised2of4(Product2of4, Quantised):
    """INT8 with a 2:4 weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, largest: float, epilogue: Epilogue):
        Quantised.__init__(self, weight, bias, largest)
        self.inputs = weight.shape[1]
        self.bias = bias  # in the result's dtype, as cuSPARSELt adds it
        self._pack(epilogue)


@torch.library.custom_op("mpx::product_2of4", mutates_args=())
def product_2of4(
    rows: Tensor, packed: Tensor, bias: Tensor | None, scale: Tensor | None, dtype: torch.dtype, out: int,
    algorithm: int, transposed: bool, within: bool,
) -> Tensor:  # fmt: skip
    """[n, in] -> [n, out], contiguous. A custom operation, so that torch.compile does not look into it."""
    result = None if rows.dtype == dtype else dtype
    found = mm_2of4(
        packed,
        rows.t(),
        result,
        bias=bias if within else None,
        scale=scale,
        transposed=transposed,
        alg_id=algorithm,
    )
    if not transposed:
        found = found.t()
    if bias is None or within:
        return found.contiguous()
    return torch.add(found, bias, out=rows.new_empty(len(rows), out, dtype=dtype))


@product_2of4.register_fake
def _(
    rows: Tensor, packed: Tensor, bias: Tensor | None, scale: Tensor | None, dtype: torch.dtype, out: int,
    algorithm: int, transposed: bool, within: bool,
) -> Tensor:  # fmt: skip
    return rows.new_empty(rows.shape[0], out, dtype=dtype)
