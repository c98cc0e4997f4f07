"""Which layers of a model can be served with 2:4 kernels, and which are faster so: each is measured in a CUDA graph, both ways."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mpx.deploy.backends import Recording, reason_of
from mpx.deploy.linear import WAYS, Linear2of4, Way
from mpx.measure.timing import median_time
from mpx.precision.formats import FORMATS
from mpx.sparsity.kernels import sparse_kernel
from mpx.sparsity.layers import Rules, Weight, weights
from mpx.sparsity.patterns import NofM, is_2of4

BUDGET_S = 0.05  # of measuring one layer in one way
CALLS = 10  # in a graph, so that launching it costs little beside them
TOLERANCE = 8  # of a sparse result against the dense one, in epsilons of the format: both round it, and sum in another order
PATTERN = NofM(2, 4)


@dataclass(frozen=True)
class Layer:
    """One line of the "worth it?" table. Times are of one call at the largest batch; None where there is none."""

    name: str
    shape: tuple[int, ...]
    tokens: int | None = None
    dense_ms: float | None = None
    sparse_ms: float | None = None  # in the fastest of all ways
    way: Way | None = None
    reason: str | None = None  # why it cannot be served with a 2:4 kernel

    @property
    def pays(self) -> bool:
        return self.way is not None and self.sparse_ms < self.dense_ms


def layers(model: nn.Module, x: Tensor, fmt: str) -> list[Layer]:
    """Every weight of the model that multiplies, measured dense and 2:4 where it can be served so. x: the largest batch."""
    found = {layer.name: layer for layer in (_candidate(model, weight, fmt, x.device) for weight in weights(model, PATTERN, Rules()))}
    tokens = _tokens(model, x, [name for name, layer in found.items() if layer.reason is None])
    measured: dict[tuple, Layer] = {}  # layers of one shape take one time
    for name, layer in found.items():
        if layer.reason is not None:
            continue
        if name not in tokens:
            found[name] = replace(layer, reason="its weight is used without calling the layer")
            continue
        dense = model.get_submodule(name)
        key = (layer.shape, tokens[name], dense.bias is None)
        if key not in measured:
            measured[key] = _measured(replace(layer, tokens=tokens[name]), dense, x.device)
        found[name] = replace(measured[key], name=name)
    return list(found.values())


def sparse_model(model: nn.Module, chosen: list[Layer]) -> nn.Module:
    """A copy in which the chosen layers have 2:4 kernels; all other weights are shared with `model`."""
    memo = {id(value): value for value in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, memo)
    for layer in chosen:
        copied.set_submodule(layer.name, Linear2of4(model.get_submodule(layer.name), layer.way))
    return copied


def _candidate(model: nn.Module, weight: Weight, fmt: str, device: torch.device) -> Layer:
    _, reason = sparse_kernel(weight, PATTERN, fmt, device)
    reason = reason or weight.reason or (None if is_2of4(weight.parameter) else "not pruned to 2:4")
    if reason is None and type(model.get_submodule(weight.layer)) is not nn.Linear:
        reason = "its class is derived from Linear and may do more"
    if reason is None and not weight.layer:
        reason = "it is the whole model"
    return Layer(weight.name.removesuffix(".weight"), tuple(weight.parameter.shape), reason=reason)


def _tokens(model: nn.Module, x: Tensor, names: list[str]) -> dict[str, int]:
    """How many rows each layer gets; without layers that are not called."""
    found: dict[str, int] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda layer, args, out: found.update({name: out.shape[:-1].numel()})

    hooks = [model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        if names:
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _measured(layer: Layer, dense: nn.Linear, device: torch.device) -> Layer:
    x = torch.randn(layer.tokens, dense.in_features, device=device).to(dense.weight.dtype)
    expected = dense(x)
    ways, refused = [], None
    for way in WAYS[dense.bias is None :]:  # without a bias the first two are one
        try:
            sparse = Linear2of4(dense, way)
            _check(sparse(x), expected)
            ways.append((_milliseconds(sparse, x, device), way))
        except (RuntimeError, ArithmeticError) as error:  # the library refuses some combinations
            refused = reason_of(error)
    if not ways:
        return replace(layer, reason=refused)
    fastest, way = min(ways, key=lambda found: found[0])
    return replace(layer, dense_ms=_milliseconds(dense, x, device), sparse_ms=fastest, way=way)


def _check(found: Tensor, expected: Tensor) -> None:
    error = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
    allowed = TOLERANCE * next(fmt.epsilon for fmt in FORMATS.values() if fmt.dtype == expected.dtype)
    if not error <= allowed:
        raise ArithmeticError(f"wrong result: relative error {error:.1e}, more than {allowed:.1e}")


def _milliseconds(call: Callable[[Tensor], Tensor], x: Tensor, device: torch.device) -> float:
    def several(x: Tensor) -> Tensor:
        for _ in range(CALLS):
            out = call(x)
        return out

    recording = Recording(several, x)
    return median_time(recording.graph.replay, device, BUDGET_S).seconds / CALLS * 1e3
