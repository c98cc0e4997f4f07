"""Time each layer that multiplies with each kernel that could serve it, in a CUDA graph; and replace layers by chosen kernels."""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mpx.deploy.backends import Recording, reason_of
from mpx.deploy.hooks import forward_hooks
from mpx.deploy.kernels import Kernel, dense_kernels, sparse_kernels
from mpx.deploy.recurrent import Lstm, apart
from mpx.measure.timing import median_time
from mpx.precision.formats import FORMATS
from mpx.sparsity.kernels import unsupported_layer
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.patterns import NofM

BUDGET_S = 0.02  # seconds for one layer by one kernel
CALLS = 10  # in a graph, so that launching it costs little beside them
MAX_EPSILONS = 8  # allowed error against the layer itself: both round the result, and sum in different orders
QUANTISED_ERROR = {"int8": 0.05, "fp8": 0.1}  # the same for 8-bit operands and random values
PATTERN = NofM(2, 4)
OWN_KERNEL = "own"  # the layer itself, by PyTorch's choice of cuBLAS's or cuDNN's kernels


@dataclass(frozen=True)
class Layer:
    """One row of the "worth it?" table.

    ms: of one call with one batch, by kernel; OWN_KERNEL is the layer itself. It leaves out the rounding of activations to 8 bits,
    which a compiler fuses with the operation before it; so the whole model decides.
    kernels: those in `ms` that can replace the layer, by name.
    reason: why the layer cannot be served 2:4. refused: why single kernels are not possible.
    """

    name: str
    shape: tuple[int, ...]
    rows: int | None = None
    ms: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    reason: str | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def fastest(self, allowed: Callable[[Kernel], bool], own: bool = True) -> str | None:
        """The name of the fastest allowed kernel; OWN_KERNEL for the layer itself, which counts if `own`. None if there is none."""
        times = {name: ms for name, ms in self.ms.items() if (own if name == OWN_KERNEL else allowed(self.kernels[name]))}
        return min(times, key=times.__getitem__, default=None)

    def record(self) -> dict[str, Any]:
        """For deploy.json."""
        found = asdict(self)
        del found["kernels"]
        return found


def layers(model: nn.Module, x: Tensor, fmt: str, *, sparse: bool, projections: Collection[str] = ()) -> list[Layer]:
    """A row for every weight of the model that multiplies, timed if other kernels can serve it. x: a batch.

    sparse: time 2:4 kernels, too. projections: of LSTMs, which are timed as layers.
    """
    found: dict[str, Layer] = {}
    possible: dict[str, list[Kernel]] = {}
    parts = apart(model, projections)
    for weight in weights(model, PATTERN, Rules(shape="any")):
        holder, name = (parts, weight.name) if weight.name in projections else (model, weight.layer)
        shape = tuple(weight.parameter.shape)
        if (reason := _unfit(holder, name, weight.reason, x.device)) is not None:
            found[weight.name.removesuffix(".weight")] = Layer(weight.name.removesuffix(".weight"), shape, reason=reason)
            continue
        layer = parts.get_submodule(name)
        (dense, why), (two, reason) = dense_kernels(layer, fmt), sparse_kernels(layer, fmt, x.device) if sparse else ([], None)
        found[name] = Layer(name, shape, reason=reason, refused={} if why is None else {fmt: why})
        possible[name] = [*dense, *two]
    inputs = _inputs(parts, x, list(possible))
    measured: dict[tuple, Layer] = {}  # layers of the same shape are timed once
    for name, kernels in possible.items():
        if name not in inputs:
            found[name] = replace(found[name], reason="its weight is used without calling the layer")
            continue
        layer, like = parts.get_submodule(name), inputs[name]
        key = (type(layer), layer.extra_repr(), like.shape, like.stride(), tuple(kernels))
        if key not in measured and kernels:
            measured[key] = _measured(found[name], layer, like, kernels)
        if kernels:
            found[name] = replace(measured[key], name=name, reason=found[name].reason or measured[key].reason)
    return list(found.values())


def with_kernels(model: nn.Module, chosen: Mapping[str, Kernel], ranges: Mapping[str, float]) -> nn.Module:
    """A copy in which these kernels replace the named layers. It shares all other weights with `model`.

    ranges: of the layers' inputs, for quantised kernels. A layer without one only gets zeros.
    """
    memo = {id(value): value for value in (*model.parameters(), *model.buffers())}
    copied = apart(copy.deepcopy(model, memo), chosen)
    for name, kernel in chosen.items():
        copied.set_submodule(name, kernel.serve(copied.get_submodule(name), ranges.get(name, 1.0)))
    for layer in copied.modules():
        if isinstance(layer, Lstm):
            layer.leave_cudnns_memory()
    return copied


def _unfit(model: nn.Module, name: str, reason: str | None, device: torch.device) -> str | None:
    if device.type != "cuda":
        return "needs a CUDA device"
    if reason is not None:
        return reason
    return unsupported_layer(model.get_submodule(name)) if name else "it is the whole model"


def _inputs(model: nn.Module, x: Tensor, names: list[str]) -> dict[str, Tensor]:
    """A meta tensor with the shape and layout of each layer's input, for the layers that are called."""
    found: dict[str, Tensor] = {}

    def note(name: str, args: tuple[Tensor], kwargs: dict, out: Tensor) -> None:
        found[name] = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device="meta")

    if names:
        with forward_hooks(model, names, note):
            model(x)
    return found


def _measured(line: Layer, layer: nn.Module, like: Tensor, kernels: list[Kernel]) -> Layer:
    device = layer.weight.device
    x = torch.empty_like(like, device=device).normal_()
    expected = layer(x)
    line = replace(
        line,
        rows=expected.numel() // len(layer.weight),
        ms={OWN_KERNEL: _milliseconds(layer, x, device)},
        refused=dict(line.refused),
        kernels={},
    )
    for kernel in kernels:
        try:
            served = kernel.serve(layer, x.abs().max().item())
            _check(served(x), expected, kernel)
            line.ms[str(kernel)] = _milliseconds(served.multiply, served.product.prepare(x), device)
            line.kernels[str(kernel)] = kernel
        except (RuntimeError, ArithmeticError) as error:  # the library refuses some combinations
            line.refused[str(kernel)] = reason_of(error)
    sparse = [str(kernel) for kernel in kernels if kernel.sparse]
    if sparse and not set(sparse) & line.ms.keys():
        line = replace(line, reason=line.refused[sparse[0]])
    return line


def _check(found: Tensor, expected: Tensor, kernel: Kernel) -> None:
    error = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
    epsilon = next(fmt.epsilon for fmt in FORMATS.values() if fmt.dtype == expected.dtype)
    allowed = QUANTISED_ERROR.get(kernel.fmt, MAX_EPSILONS * epsilon)
    if not error <= allowed:
        raise ArithmeticError(f"wrong result: relative error {error:.1e}, more than {allowed:.1e}")


def _milliseconds(call: Callable[[Tensor], Tensor], x: Tensor, device: torch.device) -> float:
    def several(x: Tensor) -> Tensor:
        for _ in range(CALLS):
            out = call(x)
        return out

    recording = Recording(several, x)
    return median_time(recording.graph.replay, device, BUDGET_S).seconds / CALLS * 1e3
