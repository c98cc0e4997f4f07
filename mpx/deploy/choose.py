"""Choose how a batch is served, by measuring: which kernel replaces which layer, and which backend calls the
whole model.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mpx.deploy.backends import REFUSED, Call, reason_of, relative_error, throughput
from mpx.deploy.kernels import Kernel, Layer
from mpx.errors import UserError
from mpx.settings.deploy import QUANTISED

# errors by which a way is refused; a model may read the weights of a layer that a product replaced
UNFIT: tuple[type[BaseException], ...] = (*REFUSED, AttributeError)
Announce = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Way:
    """A way to serve: the name of a plan, its kernels by the names of the layers that they replace, and a
    backend.
    """

    plan: str
    kernels: dict[str, Kernel]
    backend: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.plan}" if self.plan else self.backend

    @property
    def quantised(self) -> list[str]:
        return [name for name, kernel in self.kernels.items() if kernel.quantised]

    @property
    def sparse(self) -> list[str]:
        return [name for name, kernel in self.kernels.items() if kernel.sparse]


@dataclass(frozen=True)
class Choice:
    """How one batch size is served. rates: samples per second of each measured way. refused: why others are
    not possible.
    """

    way: Way
    rates: dict[Way, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "backend": self.way.backend,
            "sparse_layers": self.way.sparse,
            "candidates": {str(way): rate for way, rate in self.rates.items()},
            "refused": self.refused,
        }


def plans(table: list[Layer], fmt: str, weights: str) -> dict[str, dict[str, Kernel]]:
    """The plans that are worth measuring on the whole model, by name. A plan says which kernel replaces which
    layer.

    Raises UserError if no layer supports what is requested.
    """
    dense = _fastest(table, lambda kernel: not kernel.sparse)
    if weights == "2of4":
        sparse = _fastest(table, lambda kernel: kernel.sparse, own=False)
        if not sparse:
            raise _no_layer("weights=2of4", table, "weights=auto or dense")
        return {"2:4 kernels": dense | sparse}
    found: dict[str, dict[str, Kernel]] = {"own kernels": {}}
    if fmt in QUANTISED:
        every = _fastest(table, lambda kernel: not kernel.sparse, own=False)
        if not every:
            raise _no_layer(f"format={fmt}", table, "format=bf16 or fp16")
        found = {"dense kernels": every} if weights == "dense" else found | {"dense kernels": every}
    if weights == "auto" and (fastest := _fastest(table, lambda kernel: True)) not in found.values():
        found["fastest kernels"] = fastest
    return found


def _fastest(table: list[Layer], allowed: Callable[[Kernel], bool], own: bool = True) -> dict[str, Kernel]:
    """The fastest allowed kernel of each layer, without the layers that are fastest themselves, which count
    if `own`.
    """
    return {layer.name: kernel for layer in table if (kernel := layer.fastest(allowed, own)) is not None}


def _no_layer(what: str, table: list[Layer], instead: str) -> UserError:
    reason = "it has none that multiplies"
    if table:
        first = table[0]
        refused = [first.reason, *first.refused.values()]
        reason = f"{first.name}: {next((one for one in refused if one), 'unknown')}"
    return UserError(f"{what}: no layer of this model can be served so ({reason}). Use {instead}.")


def choose(
    ways: list[Way],
    call_by: Callable[[Way], Call],
    x: Tensor,
    differs: Callable[[Tensor], str | None],
    announce: Announce,
) -> Choice:
    """The fastest way for the batch x. A single one is not measured.

    differs: says what is wrong with outputs for x, if anything is. Raises UserError if no way is possible.
    """
    if len(ways) == 1:
        return Choice(ways[0])
    call: Call | None
    rates: dict[Way, float] = {}
    refused: dict[str, str] = {}
    for way in ways:
        free()
        announce(f"{way}, batch {len(x)}")
        try:
            call = call_by(way)
            if (reason := differs(call(x))) is None:
                rates[way] = throughput(call, x)
            else:
                refused[str(way)] = reason
        except UNFIT as error:
            refused[str(way)] = unfit(error, way)
        call = None  # frees its recordings before the next way is measured
    if not rates:
        raise impossible(ways[0], len(x), refused[str(ways[0])])
    return Choice(max(rates, key=rates.__getitem__), rates, refused)


def unfit(error: BaseException, way: Way) -> str:
    """Why a way is not possible. error: one of UNFIT, which is raised again if it is the model's own."""
    if isinstance(error, AttributeError) and not way.kernels:
        raise error
    return reason_of(error)


def differs_from(reference: Tensor, allowed: float, out: Tensor) -> str | None:
    error = relative_error(out.cpu(), reference)
    if error is None:
        return "its outputs are not finite"
    return f"wrong result: relative error {error:.1e}, more than {allowed:.1e}" if error > allowed else None


def impossible(way: Way, size: int, reason: str) -> UserError:
    return UserError(
        f"batch={size} is not possible by backend={way.backend}: {reason}. Leave that size out, or use "
        "another backend=, format= or weights=."
    )


def free() -> None:
    """Free the compiled code and recordings of earlier models. Without it, the compiler gives up on a
    function after some shapes.
    """
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
