"""Select the parameters that ASP prunes, by apex's rules (apex/contrib/sparsity/asp.py), extended to cases that fail there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from mpx.errors import UserError

WHITELIST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention)
PARAMETERS: dict[type, list[str]] = {
    nn.Linear: ["weight"],
    nn.Conv1d: ["weight"],
    nn.Conv2d: ["weight"],
    nn.Conv3d: ["weight"],
    nn.MultiheadAttention: ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"],  # out_proj is a Linear of its own
}


@dataclass(frozen=True)
class Place:
    """The location of a pruned parameter. The parameter is looked up at each use, since moving a model may replace its object."""

    name: str  # layer::parameter, as apex prints it
    layer: str
    owner: nn.Module
    attribute: str

    @property
    def parameter(self) -> nn.Parameter:
        return getattr(self.owner, self.attribute)


def find(
    model: nn.Module,
    whitelist: Iterable[type],
    allowed: Sequence[str] | None,
    disallowed: Sequence[str],
    custom: Mapping[type, list[str]],
    say: Callable[[int, str], None],
) -> list[Place]:
    """The parameters to prune, in the model's order, shared ones once.

    whitelist: layer types; a subclass counts as its nearest listed parent. allowed: only these layers, by full name; None: all.
    disallowed: not these. custom: further layer types and the names of their parameters. say(level, text): prints if the verbosity is at
    least `level`. Raises UserError for a type in the whitelist whose parameters are unknown.
    """
    table = PARAMETERS | dict(custom)
    types = tuple(dict.fromkeys((*whitelist, *custom)))
    for kind in types:
        if not (isinstance(kind, type) and any(parent in table for parent in kind.__mro__)):
            known = ", ".join(one.__name__ for one in PARAMETERS)
            shown = getattr(kind, "__name__", repr(kind))
            raise UserError(
                f"ASP: whitelist has {shown}: known are {known}; name the parameters of others in custom_layer_dict={{{shown}: […]}}."
            )
    _note_unknown(model, allowed, disallowed, say)
    places: dict[int, Place] = {}
    for layer, module in model.named_modules():
        if isinstance(module, types) and layer not in disallowed and (allowed is None or layer in allowed):
            names = next(table[parent] for parent in type(module).__mro__ if parent in table)
            for place in _of(layer, module, names, say):
                places.setdefault(id(place.parameter), place)
    return list(places.values())


def _of(layer: str, module: nn.Module, names: Sequence[str], say: Callable[[int, str], None]) -> Iterator[Place]:
    for name, parameter in module.named_parameters():
        described = f"{layer}::{name} of size={parameter.shape} and type={parameter.dtype}"
        if name not in names or not parameter.requires_grad:
            say(3, f"Not sparsifying {described}")
        elif not fits(parameter):
            say(1, f"Auto skipping pruning {described} for sparsity")
        else:
            say(3, f"Sparsifying {described} for sparsity")
            parent, _, attribute = name.rpartition(".")
            yield Place(f"{layer}::{name}", layer, module.get_submodule(parent), attribute)


def fits(parameter: Tensor) -> bool:
    """Whether sparse Tensor Cores support the shape: rows in multiples of 8, inputs (the pruned dimension) in multiples of 16."""
    return parameter.dim() >= 2 and parameter.size(0) % 8 == 0 and parameter.size(1) % 16 == 0


def _note_unknown(model: nn.Module, allowed: Sequence[str] | None, disallowed: Sequence[str], say: Callable[[int, str], None]) -> None:
    known = {name for name, _ in model.named_modules()}
    for argument, given in (("allowed_layer_names", allowed or ()), ("disallowed_layer_names", disallowed)):
        if strange := [name for name in given if name not in known]:
            say(1, f"Warning: {argument} has {strange}, which are not layers of this model")
