"""Choose how to serve a model: dense or with 2:4 layers, and by which backend. What is fastest is measured at the largest batch."""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from mpx.deploy.backends import REFUSED, Served, reason_of
from mpx.deploy.measure import throughput
from mpx.deploy.sparse import Layer, layers, sparse_model
from mpx.errors import UserError

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """How to serve. layers: the "worth it?" table; empty for weights=dense. refused: reasons, by the candidate that is not possible."""

    model: nn.Module
    backend: str
    sparse: tuple[str, ...]  # names of the layers that are served with 2:4 kernels
    layers: list[Layer]
    refused: dict[str, str]


def choose(dense: nn.Module, x: Tensor, fmt: str, weights: str, backends: list[str], announce: Announce) -> Choice:
    """x: the largest batch, in the format. weights: dense, 2of4 or auto. Raises UserError for 2of4 where no layer can be served so."""
    table: list[Layer] = []
    models: dict[tuple[str, ...], nn.Module] = {} if weights == "2of4" else {(): dense}
    if weights != "dense":
        announce("layers, dense and 2:4")
        table = layers(dense, x, fmt)
        chosen = [layer for layer in table if layer.pays or (layer.way is not None and weights == "2of4")]
        if chosen:
            models[tuple(layer.name for layer in chosen)] = sparse_model(dense, chosen)
    if not models:
        why = f"{table[0].name}: {table[0].reason}" if table else "it has none that multiplies"
        raise UserError(f"weights=2of4: no layer of this model can be served so ({why}). Use weights=auto or dense.")

    fastest, most, refused = None, 0.0, {}
    for sparse, backend in (candidates := list(product(models, backends))):
        name = f"{backend}, 2:4" if sparse else backend
        served = None
        free()
        announce(f"{name}, batch {len(x)}")
        try:
            served = Served(models[sparse], backend, x.device)
            served(x)
            rate = throughput(served, x) if len(candidates) > 1 else math.inf
        except (*REFUSED, AttributeError) as error:  # nn.TransformerEncoderLayer reads the weights of its layers, which 2:4 ones have not
            if isinstance(error, AttributeError) and not sparse:
                raise
            refused[name] = reason_of(error)
            continue
        if rate > most:
            fastest, most = (models[sparse], backend, sparse), rate
    served = None
    free()
    if fastest is None:
        reason, backend = next(iter(refused.values())), backends[0]
        if backend == "eager":
            raise UserError(f"format={fmt} with weights={weights} is not possible for this model: {reason}. Use format=fp32 weights=dense.")
        raise UserError(f"backend={backend} is not possible: {reason}. Use another backend=, or auto.")
    return Choice(*fastest, table, refused)


def free() -> None:
    """Free what was compiled and recorded for models that are no longer served. The compiler gives up on a function after some shapes."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
