"""Select the weights of a model to prune, and record why each other weight stays dense."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from mpx.errors import UserError
from mpx.sparsity.patterns import Pattern

LAYERS = {
    layer.__name__: layer
    for layer in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU, nn.MultiheadAttention)
}

UNTRAINED = "no optimizer trains it"


@dataclass
class Weight:
    """One weight matrix or filter bank of a layer."""

    name: str  # parameter name in the model's state_dict
    type: str  # the layer's class
    parameter: Tensor  # what the optimizer steps
    reason: str | None  # why it stays dense; None if it is pruned
    layer: str  # the layer's name
    module: nn.Module


@dataclass(frozen=True)
class Rules:
    """Rules that select the weights to prune. A weight must satisfy all of them; the coverage table shows the
    first that it fails.

    shape: "hardware" requires the shape of sparse Tensor Cores (2of4: rows % 8 == 0, columns % 16 == 0),
    "any" accepts every shape. types: layer classes by name, from LAYERS. A subclass counts as its parent, and
    an attention's output projection as the attention. skip: patterns (* and ?) of layer or parameter names
    that stay dense. only: patterns of the names to prune; empty means all.
    """

    shape: str = "hardware"
    types: Sequence[str] = tuple(LAYERS)
    skip: Sequence[str] = ()
    only: Sequence[str] = ()


def weights(
    model: nn.Module, pattern: Pattern, rules: Rules, trained: Iterable[nn.Parameter] | None = None
) -> list[Weight]:
    """Every weight that a layer uses in a matrix product, in the model's order, shared weights once.

    Embeddings are lookups, not products. trained: the parameters that optimizers have; the others, and frozen
    ones, stay dense. A target network or a teacher follows weights that are pruned, and gets no masks itself.
    None: every weight counts as trained. Raises UserError for a name in `skip` or `only` that no layer has.
    """
    by_parameter: dict[int, Weight] = {}
    for prefix, layer in model.named_modules():
        for name, parameter in _matrices(layer):
            full = f"{prefix}.{name}" if prefix else name
            own = type(layer).__name__
            kind = next((name for name, kind in LAYERS.items() if isinstance(layer, kind)), own)
            by_parameter.setdefault(
                id(parameter), Weight(full, kind, parameter, _by_type(kind), prefix, layer)
            )
    for layer in model.modules():  # an embedding shared with a decoder must stay dense for its lookups
        if isinstance(layer, nn.Embedding) and id(layer.weight) in by_parameter:
            by_parameter[id(layer.weight)].reason = "shared with an embedding"
    every = list(by_parameter.values())
    _refuse_unknown_names(every, rules)
    learning = (
        None if trained is None else {id(parameter) for parameter in trained if parameter.requires_grad}
    )
    for weight in every:
        if learning is not None and id(weight.parameter) not in learning:
            weight.reason = weight.reason or UNTRAINED
        weight.reason = weight.reason or _why_dense(weight, pattern, rules)
    return every


def _matrices(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    computed = isinstance(layer, ParametrizationList)  # it names its parameters original, original0, …
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    for name, parameter in layer.named_parameters(recurse=isinstance(layer, nn.MultiheadAttention)):
        if parameter.dim() >= 2 and (computed or "weight" in name):
            yield name, parameter


def _by_type(kind: str) -> str | None:
    if kind in LAYERS:
        return None
    if kind == ParametrizationList.__name__:
        return "the layer's weight is computed from it (torch.nn.utils.parametrize)"
    return f"{kind} is not a type of layer that mpx prunes"


def _why_dense(weight: Weight, pattern: Pattern, rules: Rules) -> str | None:
    """The first rule that the weight breaks; None if it breaks none."""
    shape, rows, columns = weight.parameter.shape, pattern.rows, pattern.columns
    misfit = pattern.misfit(shape)
    broken = (
        (weight.type not in rules.types, f"{weight.type} is not in sparsity.types"),
        (any(_matches(weight, name) for name in rules.skip), "in sparsity.skip"),
        (rules.only and not any(_matches(weight, name) for name in rules.only), "not in sparsity.only"),
        (misfit is not None, misfit),
        (
            rules.shape == "hardware" and (shape[0] % rows or shape[1] % columns),
            f"{shape[0]}×{shape[1]} is not a sparse Tensor Core shape (rows % {rows}, columns % {columns})",
        ),
    )
    return next((reason for holds, reason in broken if holds), None)


def _matches(weight: Weight, pattern: str) -> bool:
    return fnmatch(weight.name, pattern) or fnmatch(weight.layer, pattern)


def _refuse_unknown_names(every: list[Weight], rules: Rules) -> None:
    for key in ("skip", "only"):
        for pattern in getattr(rules, key):
            if not any(_matches(weight, pattern) for weight in every):
                names = ", ".join(weight.layer for weight in every[:4])
                raise UserError(
                    f'sparsity.{key}=["{pattern}"] names no layer of this model. Its layers: '
                    f"{names}, … Use one, or a pattern."
                )


def nothing_to_prune(pattern: Pattern, every: list[Weight]) -> str:
    reasons = "; ".join(f"{weight.name}: {weight.reason}" for weight in every[:3]) or (
        "no linear, convolution or recurrent layer"
    )
    return (
        f"sparsity={pattern.name} finds nothing to prune in this model ({reasons}). Use sparsity=dense, "
        "another model, or other rules: sparsity.shape_rule=any, types, skip, only, density."
    )
