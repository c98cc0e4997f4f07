"""Choose the kernels for a model's layers and the backend for the whole model, by measuring each choice at the largest batch."""

import gc
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from mpx.deploy.backends import REFUSED, reason_of
from mpx.deploy.kernel_times import OWN_KERNEL, Layer, layers, with_kernels
from mpx.deploy.kernels import Kernel
from mpx.deploy.measure import Call, throughput
from mpx.errors import UserError
from mpx.settings.deploy import QUANTISED

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """How to serve a model. kernels: by the name of the layer that each replaces. layers: the rows of the "worth it?" table.

    candidates: samples per second of each measured candidate. refused: why a candidate is not possible.
    """

    model: nn.Module
    backend: str
    kernels: dict[str, Kernel]
    layers: list[Layer]
    candidates: dict[str, float]
    refused: dict[str, str]


def choose(
    dense: nn.Module, x: Tensor, fmt: str, weights: str, backends: list[str], call_by: Callable[[nn.Module, str], Call],
    ranges: Mapping[str, float], announce: Announce, projections: Collection[str] = (),
) -> Choice:  # fmt: skip
    """x: the largest batch, as the model takes it. weights: dense, 2of4 or auto. ranges: of the layers' inputs, for int8 and fp8.
    projections: of LSTMs that can be layers.

    Raises UserError for 2of4, int8 or fp8 if no layer supports it.
    """
    if x.is_cuda:
        announce("layers")
    table = layers(dense, x, fmt, sparse=weights != "dense", projections=projections)
    ways = plans(table, fmt if x.is_cuda else "fp32", weights, projections)  # on a CPU, INT8 is the backend's
    fastest, most, rates, refused = None, 0.0, {}, {}
    for plan, backend in (candidates := list(product(ways, backends))):
        name = backend if len(ways) == 1 else f"{backend}, {plan}"
        served = model = None
        free()
        announce(f"{name}, batch {len(x)}")
        try:
            model = with_kernels(dense, ways[plan], ranges)
            served = call_by(model, backend)
            served(x)
            rate = throughput(served, x) if len(candidates) > 1 else math.inf
        except (*REFUSED, AttributeError) as error:  # the model reads the weights of a layer that a product replaced
            if isinstance(error, AttributeError) and not ways[plan]:
                raise
            refused[name] = reason_of(error)
            continue
        if len(candidates) > 1:
            rates[name] = rate
        if rate > most:
            fastest, most = (model, backend, ways[plan]), rate
    served = model = None
    free()
    if fastest is None:
        reason, backend = next(iter(refused.values())), backends[0]
        if backend == "eager":
            raise UserError(f"format={fmt} with weights={weights} is not possible for this model: {reason}. Use format=fp32 weights=dense.")
        raise UserError(f"backend={backend} is not possible: {reason}. Use another backend=, or auto.")
    return Choice(*fastest, table, rates, refused)


def plans(table: list[Layer], fmt: str, weights: str, projections: Collection[str] = ()) -> dict[str, dict[str, Kernel]]:
    """The plans that are worth measuring on the whole model, by name. A plan says which kernel replaces which layer. One that takes
    projections from cuDNN, whose recurrence is faster, is measured without them, too.

    Raises UserError if no layer supports what is requested.
    """
    quantised = fmt in QUANTISED
    dense = _fastest(table, lambda kernel: not kernel.sparse)
    if weights == "2of4":
        sparse = _fastest(table, lambda kernel: kernel.sparse, own=False)
        if not sparse:
            raise UserError(f"weights=2of4: no layer of this model can be served so ({_reason(table)}). Use weights=auto or dense.")
        return {"2:4 kernels": dense | sparse}
    if quantised:
        every = _fastest(table, lambda kernel: not kernel.sparse, own=False)
        if not every:
            raise UserError(f"format={fmt}: no layer of this model can be served so ({_reason(table, fmt)}). Use format=bf16 or fp16.")
        found = {"dense kernels": every} if weights == "dense" else {"own kernels": {}, "dense kernels": every}
    else:
        found = {"own kernels": {}, "fastest dense kernels": dense}
    if weights == "auto":
        found["fastest kernels"] = _fastest(table, lambda kernel: True)
    others = {name: {layer: kernel for layer, kernel in plan.items() if layer not in projections} for name, plan in found.items()}
    found |= {f"{name}, LSTMs by cuDNN": plan for name, plan in others.items() if plan}
    different: dict[str, dict[str, Kernel]] = {}
    for name, plan in found.items():
        if plan not in different.values():
            different[name] = plan
    return different


def _fastest(table: list[Layer], allowed: Callable[[Kernel], bool], own: bool = True) -> dict[str, Kernel]:
    """The fastest allowed kernel of each layer, without the layers that are fastest themselves."""
    names = {layer.name: layer.fastest(allowed, own) for layer in table}
    return {layer.name: layer.kernels[names[layer.name]] for layer in table if names[layer.name] not in (None, OWN_KERNEL)}


def _reason(table: list[Layer], fmt: str | None = None) -> str:
    if not table:
        return "it has none that multiplies"
    refused = next(iter(table[0].refused.values()), None)
    return f"{table[0].name}: {(refused if fmt else None) or table[0].reason or refused}"


def free() -> None:
    """Free the compiled code and recordings of earlier models. Without it, the compiler gives up on a function after some shapes."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
