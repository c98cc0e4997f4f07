"""The kernels of a GPU that can replace a Linear or Conv2d, the layers made of them, and the time that each
takes.

2:4 convolutions do not win: a ResNet-50 in BF16 with 2:4 kernels where they are faster has 0.89 of its dense
speed, and one with 3×3 convolutions by 2:4 kernels is slower still, because patches are copied
(experiments/served).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mpx.deploy.backends import Recording, forward_hooks, reason_of, relative_error
from mpx.deploy.products import EPILOGUES, Epilogue, Fp8, Product, Product2of4, Quantised, Quantised2of4
from mpx.measure.timing import median_time
from mpx.precision.formats import FORMATS
from mpx.settings.deploy import QUANTISED
from mpx.sparsity.kernels import MULTIPLES, NO_2OF4, misfit, unsupported_device, unsupported_layer
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.patterns import NofM, is_2of4

ROWS = 32  # kernels take rows in multiples of this
DENSE_MULTIPLES = {"int8": 8, "fp8": 16}  # of the rows and columns of a weight
BUDGET_S = 0.02  # seconds for one layer by one kernel
CALLS = 10  # in a graph, so that launching it costs little beside them
MAX_EPSILONS = 8  # allowed error against the layer itself: both round the result, and sum in different orders
QUANTISED_ERROR = {"int8": 0.05, "fp8": 0.1}  # the same for 8-bit operands and random values
OWN_KERNEL = "own"  # the layer itself, by PyTorch's choice of cuBLAS's or cuDNN's kernels
Replaceable = nn.Linear | nn.Conv2d


@dataclass(frozen=True)
class Kernel:
    """A kernel for a layer. fmt: format of the operands. epilogue: of a 2:4 product; None for a dense one of
    8 bits.
    """

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

    def serve(self, layer: Replaceable, largest: float) -> "Rows":
        """The layer that replaces `layer`. largest: the calibrated range of its inputs, for 8 bits."""
        weight, bias = as_matrix(layer).contiguous(), None if layer.bias is None else layer.bias.detach()
        product = self._product(weight, bias, largest)
        return LinearRows(product) if isinstance(layer, nn.Linear) else ConvRows(layer, product)

    def _product(self, weight: Tensor, bias: Tensor | None, largest: float) -> Product:
        if self.epilogue is None:
            return Fp8(weight, bias, largest) if self.fmt == "fp8" else Quantised(weight, bias, largest)
        if self.fmt == "int8":
            return Quantised2of4(weight, bias, largest, self.epilogue)
        return Product2of4(weight, bias, self.epilogue)


def dense_kernels(layer: Replaceable, fmt: str) -> tuple[list[Kernel], str | None]:
    """(kernels for the dense weight besides the layer's own, why there is none)."""
    if fmt not in QUANTISED:
        return [], None
    return _of_shape([Kernel(fmt)], as_matrix(layer), DENSE_MULTIPLES[fmt], fmt)


def no_2of4(fmt: str, device: torch.device) -> str | None:
    """Why no 2:4 weight of any shape can be served in `fmt` on the GPU `device`; None if some can."""
    return NO_2OF4.get(fmt) or unsupported_device(device)


def sparse_kernels(layer: Replaceable, fmt: str, device: torch.device) -> tuple[list[Kernel], str | None]:
    """(kernels for the 2:4 weight, why there is none)."""
    if (reason := no_2of4(fmt, device)) is not None:
        return [], reason
    matrix = as_matrix(layer)
    if not is_2of4(matrix):
        return [], "not pruned to 2:4"
    epilogues = EPILOGUES[layer.bias is None :]  # without a bias the first two are the same
    # transposed products of FP16 hang after some dozens of calls (H200, cuSPARSELt of torch 2.11)
    if fmt == "fp16":
        epilogues = tuple(epilogue for epilogue in epilogues if not epilogue.transposed)
    return _of_shape([Kernel(fmt, epilogue) for epilogue in epilogues], matrix, MULTIPLES[fmt], f"2:4 {fmt}")


def _of_shape(
    kernels: list[Kernel], matrix: Tensor, multiple: int, name: str
) -> tuple[list[Kernel], str | None]:
    reason = misfit(matrix.shape, multiple, name)
    return (kernels, None) if reason is None else ([], reason)


def as_matrix(layer: Replaceable) -> Tensor:
    """The layer's weight as [out, in]. A filter's channels are innermost, as in `ConvRows`: 2:4 groups stay
    together.
    """
    weight = layer.weight.detach()
    return weight if isinstance(layer, nn.Linear) else weight.permute(0, 2, 3, 1).flatten(1)


class Rows(nn.Module):
    """Computes a layer in two steps: `product.prepare`, which a compiler fuses with the operation before it,
    and `multiply`.
    """

    def __init__(self, product: Product):
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(self.product.prepare(x))

    def multiply(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class LinearRows(Rows):
    def multiply(self, x: Tensor) -> Tensor:
        return products(self.product, x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class ConvRows(Rows):
    """A convolution without groups or dilation. Each output position is a row, whose values are the pixels
    under the filter.
    """

    def __init__(self, conv: nn.Conv2d, product: Product):
        super().__init__(product)
        self.kernel, self.stride = conv.kernel_size, conv.stride
        self.height, self.width = map(int, conv.padding)

    def multiply(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)  # contiguous where x has channels last
        if self.height or self.width:
            x = pad(x, (0, 0, self.width, self.width, self.height, self.height))
        down, across = self.stride
        if self.kernel == (1, 1):
            x = x[:, ::down, ::across]
            places = x.shape[:3]
        else:
            x = x.unfold(1, self.kernel[0], down).unfold(2, self.kernel[1], across)  # [N, H, W, C, kh, kw]
            places = x.shape[:3]
            x = x.permute(0, 1, 2, 4, 5, 3).flatten(3)
        return products(self.product, x.flatten(0, 2)).unflatten(0, places).permute(0, 3, 1, 2)


def products(product: Product, rows: Tensor) -> Tensor:
    """rows: any number, [n, in]."""
    count = rows.shape[0]
    if count % ROWS:  # pad copies even if it adds nothing
        rows = pad(rows, (0, 0, 0, -count % ROWS))
    return product(rows.contiguous())[:count]


@dataclass(frozen=True)
class Layer:
    """A weight that multiplies, with the times of the kernels that can serve it.

    own_ms: of one call of the layer itself with one batch. ms: of the kernels that can replace it. They leave
    out the rounding of activations to 8 bits, which a compiler fuses with the operation before it; only the
    time of the whole model has that. reason: why the layer cannot be served 2:4. refused: why single kernels
    are not possible.
    """

    name: str
    shape: tuple[int, ...]
    rows: int | None = None
    own_ms: float = 0.0
    ms: dict[Kernel, float] = field(default_factory=dict)
    reason: str | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def fastest(self, allowed: Callable[[Kernel], bool], own: bool = True) -> Kernel | None:
        """The fastest allowed kernel; None if there is none, or if the layer itself is faster, which counts
        if `own`.
        """
        times = {
            kernel: ms
            for kernel, ms in self.ms.items()
            if allowed(kernel) and not (own and self.own_ms <= ms)
        }
        return min(times, key=times.__getitem__, default=None)

    def record(self, chosen: Mapping[str, Kernel]) -> dict[str, Any]:
        """For deploy.json. chosen: the kernels that serve the model."""
        ms = (
            {OWN_KERNEL: self.own_ms} | {str(kernel): ms for kernel, ms in self.ms.items()} if self.ms else {}
        )
        fields = {key: getattr(self, key) for key in ("name", "shape", "rows", "reason", "refused")}
        return fields | {"ms": ms, "served": str(chosen.get(self.name, OWN_KERNEL))}


def layers(model: nn.Module, x: Tensor, fmt: str, *, sparse: bool) -> list[Layer]:
    """Every weight of the model that multiplies, timed if other kernels can serve it. x: a batch. sparse:
    time 2:4 kernels.
    """
    table: list[Layer] = []
    timed: dict[tuple[Any, ...], Layer] = {}  # layers of the same shape are timed once
    inputs = _inputs(model, x)
    for weight in weights(model, NofM(2, 4), Rules(shape="any")):
        name, shape = weight.name.removesuffix(".weight"), tuple(weight.parameter.shape)
        layer = model.get_submodule(weight.layer)
        if (reason := weight.reason or unsupported_layer(layer)) is None and weight.layer not in inputs:
            reason = "its weight is used without calling the layer"
        if reason is not None or not isinstance(layer, Replaceable):
            table.append(Layer(name, shape, reason=reason))
            continue
        dense, no_8_bits = dense_kernels(layer, fmt)
        two, reason = sparse_kernels(layer, fmt, x.device) if sparse else ([], None)
        row = Layer(name, shape, reason=reason, refused={} if no_8_bits is None else {fmt: no_8_bits})
        if kernels := (*dense, *two):
            like = inputs[weight.layer]
            key = (type(layer), layer.extra_repr(), like.shape, like.stride(), kernels)
            if key not in timed:
                timed[key] = _timed(row, layer, like, kernels)
            row = replace(timed[key], name=name, reason=reason or timed[key].reason)
        table.append(row)
    return table


def with_kernels(model: nn.Module, chosen: Mapping[str, Kernel], ranges: Mapping[str, float]) -> nn.Module:
    """`model`, in which these kernels replace the named layers.

    ranges: of the layers' inputs, for 8 bits. A layer that calibration never called, or with zeros alone, has
    none.
    """
    for name, kernel in chosen.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, Replaceable)
        model.set_submodule(name, kernel.serve(layer, ranges.get(name, 1.0)))
    return model


def _inputs(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """A meta tensor with the shape and layout of the input of each layer that is called and can be
    replaced.
    """
    inputs: dict[str, Tensor] = {}

    def note(name: str, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        like = args[0]
        inputs[name] = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")

    with forward_hooks(
        model,
        [name for name, layer in model.named_modules() if name and isinstance(layer, Replaceable)],
        note,
    ):
        model(x)
    return inputs


def _timed(row: Layer, layer: Replaceable, like: Tensor, kernels: tuple[Kernel, ...]) -> Layer:
    device = layer.weight.device
    x = torch.empty_like(like, device=device).normal_()
    expected = layer(x)
    ms, refused = {}, dict(row.refused)
    for kernel in kernels:
        try:
            served = kernel.serve(layer, x.abs().max().item())
            _check(served(x), expected, kernel)
            ms[kernel] = _milliseconds(served.multiply, served.product.prepare(x), device)
        except (RuntimeError, ArithmeticError) as error:  # the library refuses some combinations
            refused[str(kernel)] = reason_of(error)
    two = [kernel for kernel in kernels if kernel.sparse]
    reason = refused[str(two[0])] if two and not ms.keys() & set(two) else None
    own_ms, rows = _milliseconds(layer, x, device), expected.numel() // len(layer.weight)
    return replace(row, rows=rows, own_ms=own_ms, ms=ms, refused=refused, reason=reason)


def _check(out: Tensor, expected: Tensor, kernel: Kernel) -> None:
    epsilon = next(fmt.epsilon for fmt in FORMATS.values() if fmt.dtype == expected.dtype)
    allowed = QUANTISED_ERROR.get(kernel.fmt, MAX_EPSILONS * epsilon)
    error = relative_error(out, expected)
    if error is None or error > allowed:
        raise ArithmeticError(f"wrong result: relative error {error}, more than {allowed:.1e}")


def _milliseconds(call: Callable[[Tensor], Tensor], x: Tensor, device: torch.device) -> float:
    def several(x: Tensor) -> Tensor:
        for _ in range(CALLS):
            out = call(x)
        return out

    recording = Recording(several, x)
    return median_time(recording.graph.replay, device, BUDGET_S).seconds / CALLS * 1e3
