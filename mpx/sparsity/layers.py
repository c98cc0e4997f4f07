"""Which weights of a model are pruned, and for every other one the reason why not."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from torch import nn

from mpx.sparsity.patterns import GROUP

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU, nn.MultiheadAttention)


@dataclass
class Weight:
    """One weight matrix or filter bank of a layer."""

    name: str  # parameter name in the model's state_dict
    type: str  # the layer's class
    parameter: nn.Parameter
    reason: str | None  # why it stays dense; None: it is pruned


def weights(model: nn.Module, *, shape_rule: str, skip: tuple[str, ...]) -> list[Weight]:
    """Every weight of a layer that multiplies matrices, in the model's order; shared ones once.

    shape_rule: "hardware" prunes only what sparse Tensor Cores take (rows % 8 == 0, columns % 16 == 0), "any" all with columns % 4 == 0.
    skip: patterns of parameter or layer names that stay dense.
    """
    found: dict[int, Weight] = {}
    for prefix, layer in model.named_modules():
        if not isinstance(layer, LAYERS):
            continue
        for name, parameter in _matrices(layer):
            full = f"{prefix}.{name}" if prefix else name
            reason = _reason(full, prefix, parameter, shape_rule, skip)
            found.setdefault(id(parameter), Weight(full, type(layer).__name__, parameter, reason))
    for layer in model.modules():  # an embedding that a decoder shares is looked up, not multiplied
        if isinstance(layer, nn.Embedding) and id(layer.weight) in found:
            found[id(layer.weight)].reason = "shared with an embedding"
    return list(found.values())


def _matrices(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.dim() >= 2 and "weight" in name:
            yield name, parameter


def _reason(name: str, layer: str, parameter: nn.Parameter, shape_rule: str, skip: tuple[str, ...]) -> str | None:
    rows, columns = parameter.shape[:2]
    if any(fnmatch(name, pattern) or fnmatch(layer, pattern) for pattern in skip):
        return "in sparsity.skip"
    if columns % GROUP:
        return f"{columns} inputs, not a multiple of {GROUP}"
    if shape_rule == "hardware" and (rows % 8 or columns % 16):
        return f"{rows}×{columns} is no sparse Tensor Core shape (rows % 8, columns % 16)"
    return None
