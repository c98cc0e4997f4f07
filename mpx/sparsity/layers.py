"""Which weights of a model are pruned, and for every other one the reason why not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from mpx.errors import UserError
from mpx.sparsity.patterns import Pattern

LAYERS = {layer.__name__: layer for layer in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU, nn.MultiheadAttention)}


@dataclass
class Weight:
    """One weight matrix or filter bank of a layer."""

    name: str  # parameter name in the model's state_dict
    type: str  # the layer's class
    parameter: nn.Parameter
    reason: str | None  # why it stays dense; None: it is pruned
    layer: str = ""  # the layer's own name


@dataclass(frozen=True)
class Rules:
    """Which layers a pattern is applied to. All rules must agree; the first that does not is the reason in the coverage table.

    shape: "hardware" takes only what sparse Tensor Cores take (2of4: rows % 8 == 0, columns % 16 == 0), "any" every shape.
    types: classes of layers, by name, from LAYERS; a subclass counts as its parent. An attention's output projection belongs to it.
    skip, only: patterns (* and ?) of layer or parameter names that stay dense, or that alone are pruned (empty: all).
    min_size: least number of values in a weight. dense_first, dense_last: leave the model's first or last layer dense, in the order in
    which the model defines them.
    """

    shape: str = "hardware"
    types: Sequence[str] = tuple(LAYERS)
    skip: Sequence[str] = ()
    only: Sequence[str] = ()
    min_size: int = 0
    dense_first: bool = False
    dense_last: bool = False


def weights(model: nn.Module, pattern: Pattern, rules: Rules) -> list[Weight]:
    """Every weight of a layer that multiplies matrices, in the model's order; shared ones once. Embeddings are looked up.

    Raises UserError for a name in `skip` or `only` that no layer has.
    """
    found: dict[int, Weight] = {}
    for prefix, layer in model.named_modules():
        for name, parameter in _matrices(layer):
            full = f"{prefix}.{name}" if prefix else name
            kind = _type(layer)
            found.setdefault(id(parameter), Weight(full, kind, parameter, None if kind in LAYERS else _of_other_kind(kind), prefix))
    for layer in model.modules():  # an embedding that a decoder shares is looked up, not multiplied
        if isinstance(layer, nn.Embedding) and id(layer.weight) in found:
            found[id(layer.weight)].reason = "shared with an embedding"
    every = list(found.values())
    _refuse_unknown_names(every, rules)
    for weight in every:
        weight.reason = weight.reason or _by_place(weight, every, rules) or _by_name(weight, rules) or _by_shape(weight, pattern, rules)
    return every


def _matrices(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    computed = isinstance(layer, ParametrizationList)  # its parameters are called original, original0, …
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    for name, parameter in layer.named_parameters(recurse=isinstance(layer, nn.MultiheadAttention)):
        if parameter.dim() >= 2 and (computed or "weight" in name):
            yield name, parameter


def _type(layer: nn.Module) -> str:
    return next((name for name, kind in LAYERS.items() if isinstance(layer, kind)), type(layer).__name__)


def _of_other_kind(kind: str) -> str:
    if kind == ParametrizationList.__name__:
        return "the layer's weight is computed from it (torch.nn.utils.parametrize)"
    return f"{kind} is no kind of layer that is pruned"


def _by_place(weight: Weight, every: list[Weight], rules: Rules) -> str | None:
    if rules.dense_first and weight.layer == every[0].layer:
        return "first layer (sparsity.dense_first)"
    if rules.dense_last and weight.layer == every[-1].layer:
        return "last layer (sparsity.dense_last)"
    return None


def _by_name(weight: Weight, rules: Rules) -> str | None:
    if weight.type not in rules.types:
        return f"{weight.type} is not in sparsity.types"
    if any(_matches(weight, pattern) for pattern in rules.skip):
        return "in sparsity.skip"
    if rules.only and not any(_matches(weight, pattern) for pattern in rules.only):
        return "not in sparsity.only"
    return None


def _by_shape(weight: Weight, pattern: Pattern, rules: Rules) -> str | None:
    shape = weight.parameter.shape
    if (size := shape.numel()) < rules.min_size:
        return f"{size:,} weights, fewer than sparsity.min_size={rules.min_size:,}"
    if (reason := pattern.misfit(shape)) is not None:
        return reason
    if rules.shape == "hardware" and (shape[0] % pattern.rows or shape[1] % pattern.columns):
        return f"{shape[0]}×{shape[1]} is no sparse Tensor Core shape (rows % {pattern.rows}, columns % {pattern.columns})"
    return None


def _matches(weight: Weight, pattern: str) -> bool:
    return fnmatch(weight.name, pattern) or fnmatch(weight.layer, pattern)


def _refuse_unknown_names(every: list[Weight], rules: Rules) -> None:
    for key in ("skip", "only"):
        for pattern in getattr(rules, key):
            if not any(_matches(weight, pattern) for weight in every):
                names = ", ".join(weight.layer for weight in every[:4])
                raise UserError(f'sparsity.{key}=["{pattern}"] names no layer of this model. Its layers: {names}, … Use one, or a pattern.')
