"""Choose the kernels for a model's layers and the backend for the whole model, by measuring each choice, for each batch size."""

import gc
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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
UNFIT = (*REFUSED, AttributeError)  # a model may read the weights of a layer that a product replaced


@dataclass(frozen=True)
class Choice:
    """How to serve batches of one size. kernels: by the name of the layer that each replaces.

    layers: the rows of the "worth it?" table. candidates: samples per second of each measured one. refused: why others are not possible.
    """

    backend: str
    kernels: dict[str, Kernel]
    layers: list[Layer]
    candidates: dict[str, float]
    refused: dict[str, str]


def choose(
    dense: nn.Module, x: Tensor, fmt: str, weights: str, backends: list[str], call_by: Callable[[nn.Module, str], Call],
    ranges: Mapping[str, float], announce: Announce, projections: Collection[str] = (), largest: Choice | None = None,
    differs: Callable[[Tensor], str | None] = lambda out: None,
) -> Choice:  # fmt: skip
    """x: a batch, as the model takes it. weights: dense, 2of4 or auto. ranges: of the layers' inputs, for int8 and fp8.
    projections: of LSTMs that can be layers. largest: the choice for the largest batch, if x is a smaller one. differs: says what is wrong
    with outputs for x. A candidate with such outputs is refused, unless all have them.

    Raises UserError for 2of4, int8 or fp8 if no layer supports it, and if no candidate is possible. A single candidate is not tried.
    """
    if largest is not None and len(backends) == 1 and (weights == "2of4" or not _several(largest)):
        return replace(largest, layers=[], candidates={}, refused={})
    if x.is_cuda:
        announce(f"layers, batch {len(x)}")
    table = layers(dense, x, fmt, sparse=weights != "dense", projections=projections)
    if largest is None:
        ways = plans(table, fmt if x.is_cuda else "fp32", weights, projections)  # on a CPU, INT8 is the backend's
    else:
        ways = _plans_alike(table, weights, projections, largest)
    names = {(plan, backend): backend if len(ways) == 1 else f"{backend}, {plan}" for plan, backend in product(ways, backends)}
    rates, refused = {}, {}
    if len(names) > 1:
        call = lambda plan, backend: call_by(with_kernels(dense, ways[plan], ranges), backend)  # noqa: E731
        rates, refused = _tried(names, ways, call, x, announce, differs)
    free()
    if len(refused) == len(names):
        raise impossible(next(iter(refused.values())), fmt, weights, backends[0], None if largest is None else len(x))
    plan, backend = max(names, key=lambda way: rates.get(names[way], 0))
    return Choice(backend, ways[plan], table, rates, refused)


def _tried(
    names: Mapping[tuple[str, str], str], ways: Mapping[str, Mapping[str, Kernel]], call: Callable[[str, str], Call], x: Tensor,
    announce: Announce, differs: Callable[[Tensor], str | None],
) -> tuple[dict[str, float], dict[str, str]]:  # fmt: skip
    """(samples per second, why not possible) of each candidate, by its name. names: of (plan, backend). call: the model by these."""
    rates, refused, wrong = {}, {}, {}
    for (plan, backend), name in names.items():
        served = None  # frees the recordings of the candidate before
        free()
        announce(f"{name}, batch {len(x)}")
        try:
            served = call(plan, backend)
            reason = differs(served(x))
            rates[name] = throughput(served, x)
            wrong |= {} if reason is None else {name: reason}
        except UNFIT as error:
            refused[name] = unfit(error, ways[plan])
    if len(wrong) == len(rates):
        return rates, refused
    return {name: rate for name, rate in rates.items() if name not in wrong}, refused | wrong


def unfit(error: BaseException, kernels: Mapping[str, Kernel]) -> str:
    """Why a model with these kernels is not possible. error: one of UNFIT, which is raised again if it is the model's own."""
    if isinstance(error, AttributeError) and not kernels:
        raise error
    return reason_of(error)


def impossible(reason: str, fmt: str, weights: str, backend: str, size: int | None) -> UserError:
    """size: of a batch that is smaller than the largest, which is possible."""
    if size is not None:
        return UserError(f"batch={size} is not possible by backend={backend}: {reason}. Leave that size out.")
    if backend == "eager":
        return UserError(f"format={fmt} with weights={weights} is not possible for this model: {reason}. Use format=fp32 weights=dense.")
    return UserError(f"backend={backend} is not possible: {reason}. Use another backend=, or auto.")


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


def _plans_alike(table: list[Layer], weights: str, projections: Collection[str], largest: Choice) -> dict[str, dict[str, Kernel]]:
    """The plans by which the same layers multiply 8 bits as at the largest batch, whose accuracy then holds for this one, too."""
    found: dict[str, dict[str, Kernel]] = {}
    with suppress(UserError):  # weights=2of4, and no layer has such a kernel at this size
        found = plans(_alike(table, largest), "bf16", weights, projections)  # which layers have 8 bits is settled
    same = {name: plan for name, plan in found.items() if _quantised(plan) == _quantised(largest.kernels)}
    return same or {"kernels of the largest batch": largest.kernels}


def _alike(table: list[Layer], largest: Choice) -> list[Layer]:
    """The table without the kernels by which a layer would multiply 8 bits and does not at the largest batch, or the other way round."""
    eight = _quantised(largest.kernels)

    def fits(layer: Layer, name: str) -> bool:
        return (name != OWN_KERNEL and layer.kernels[name].quantised) == (layer.name in eight)

    return [replace(layer, ms={name: ms for name, ms in layer.ms.items() if fits(layer, name)}) for layer in table]


def _several(largest: Choice) -> bool:
    """Whether smaller batches have a choice of kernels."""
    return any(len(layer.ms) > 1 for layer in _alike(largest.layers, largest))


def _quantised(plan: Mapping[str, Kernel]) -> set[str]:
    return {layer for layer, kernel in plan.items() if kernel.quantised}


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
