"""The kernels that can replace a layer's own, and the reasons why others cannot."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpx.deploy.layers import ConvRows, LinearRows, Rows, as_matrix
from mpx.deploy.products import EPILOGUES, Epilogue, Fp8, Product, Product2of4, Quantised, Quantised2of4
from mpx.settings.deploy import QUANTISED
from mpx.sparsity.kernels import MULTIPLES, NO_2OF4, misfit, unsupported_gpu
from mpx.sparsity.patterns import is_2of4

DENSE_MULTIPLES = {"int8": 8, "fp8": 16}


@dataclass(frozen=True)
class Kernel:
    """A kernel for a layer. fmt: format of the operands. epilogue: of a 2:4 product; None for a dense one."""

    fmt: str
    epilogue: Epilogue | None = None

    @property
    def sparse(self) -> bool:
        return self.epilogue is not None

    @property
    def quantised(self) -> bool:
        return self.fmt in QUANTISED

    def __str__(self) -> str:
        return f"{self.fmt} 2:4 {self.epilogue}" if self.sparse else f"{self.fmt} matrix product"

    def serve(self, layer: nn.Linear | nn.Conv2d, largest: float) -> Rows:
        """The layer that replaces `layer`. largest: the calibrated range of its inputs, for quantised kernels."""
        weight, bias = as_matrix(layer).contiguous(), None if layer.bias is None else layer.bias.detach()
        product = self._product(weight, bias, largest)
        return LinearRows(product) if isinstance(layer, nn.Linear) else ConvRows(layer, product)

    def _product(self, weight: Tensor, bias: Tensor | None, largest: float) -> Product:
        if self.fmt == "int8":
            return Quantised2of4(weight, bias, largest, self.epilogue) if self.sparse else Quantised(weight, bias, largest)
        if self.fmt == "fp8":
            return Fp8(weight, bias, largest)
        return Product2of4(weight, bias, self.epilogue) if self.sparse else Product(weight, bias)


def dense_kernels(layer: nn.Linear | nn.Conv2d, fmt: str) -> tuple[list[Kernel], str | None]:
    """(kernels for the dense weight besides the layer's own, why there is none)."""
    if fmt in QUANTISED:
        return _of_shape([Kernel(fmt)], as_matrix(layer), DENSE_MULTIPLES[fmt], fmt)
    if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
        return [Kernel(fmt)], None
    return [], None


def no_2of4(fmt: str, device: torch.device) -> str | None:
    """Why no 2:4 weight of any shape can be served in `fmt` on the GPU `device`; None if some can."""
    return NO_2OF4.get(fmt) or unsupported_gpu(device)


def sparse_kernels(layer: nn.Linear | nn.Conv2d, fmt: str, device: torch.device) -> tuple[list[Kernel], str | None]:
    """(kernels for the 2:4 weight, why there is none)."""
    if (reason := no_2of4(fmt, device)) is not None:
        return [], reason
    matrix = as_matrix(layer)
    if not is_2of4(matrix):
        return [], "not pruned to 2:4"
    epilogues = EPILOGUES[layer.bias is None :]  # without a bias the first two are the same
    if fmt == "fp16":  # transposed products of FP16 hang after some dozens of calls (H200, cuSPARSELt of torch 2.11)
        epilogues = tuple(epilogue for epilogue in epilogues if not epilogue.transposed)
    return _of_shape([Kernel(fmt, epilogue) for epilogue in epilogues], matrix, MULTIPLES[fmt], f"2:4 {fmt}")


def _of_shape(kernels: list[Kernel], matrix: Tensor, multiple: int, name: str) -> tuple[list[Kernel], str | None]:
    reason = misfit(matrix.shape, multiple, name)
    return (kernels, None) if reason is None else ([], reason)
