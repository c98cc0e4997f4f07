"""Select the parameters that ASP prunes, by apex's rules (apex/contrib/sparsity/asp.py), and the pattern of
its masks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpx.errors import UserError, nearest
from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.tiles import Tiles
from mpx.system.processes import rank_and_world

PARAMETERS: dict[type, list[str]] = {
    nn.Linear: ["weight"],
    nn.Conv1d: ["weight"],
    nn.Conv2d: ["weight"],
    nn.Conv3d: ["weight"],
    # out_proj is a Linear
    nn.MultiheadAttention: ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"],
}
PATTERNS: dict[str, Pattern] = {
    "m4n2_1d": NofM(2, 4),
    "m4n2_2d_best": Tiles("best"),
    "m4n2_2d_greedy": Tiles("greedy"),
}


class Calculated(Pattern):
    """The masks that a user's function weight -> mask (True or 1 stays) chooses."""

    name = "mask_calculator"

    def __init__(self, calculate: Callable[[Tensor], Tensor]):
        self.calculate = calculate

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        return [self._checked(self.calculate(weight.detach()), weight) for weight in weights]

    def _checked(self, mask: Any, weight: Tensor) -> Tensor:
        if not isinstance(mask, Tensor) or mask.shape != weight.shape:
            got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise UserError(
                f"ASP: mask_calculator returned {got}: it must return a tensor of shape "
                f"{tuple(weight.shape)}."
            )
        return mask.to(weight.device).bool()

    def holds(self, weight: Tensor) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=weight.device)

    def misfit(self, shape: Sequence[int]) -> str | None:
        return None


def pattern_of(calculator: Any) -> Pattern:
    """The pattern of this name, or of the user's own function. Raises UserError for anything else."""
    if isinstance(calculator, str) and calculator in PATTERNS:
        return PATTERNS[calculator]
    if callable(calculator):
        return Calculated(calculator)
    hint = nearest(str(calculator), PATTERNS)
    raise UserError(
        f"ASP: mask_calculator={calculator!r}: allowed are {', '.join(PATTERNS)}, or a "
        f"function weight -> mask.{hint}"
    )


def find(
    model: nn.Module,
    whitelist: Iterable[type],
    allowed: Sequence[str] | None,
    disallowed: Sequence[str],
    custom: Mapping[type, list[str]],
    verbosity: int,
) -> list[Weight]:
    """The parameters to prune, in the model's order, shared ones once.

    whitelist: layer types; a subclass counts as its nearest listed parent. allowed: only these layers, by
    full name; None: all. disallowed: not these. custom: further layer types and the names of their
    parameters. Raises UserError for a type in the whitelist whose parameters are unknown.
    """
    table = PARAMETERS | dict(custom)
    types = tuple(dict.fromkeys((*whitelist, *custom)))
    for kind in types:
        if not any(parent in table for parent in kind.__mro__):
            raise UserError(
                f"ASP: whitelist has {kind.__name__}: name its parameters in "
                f"custom_layer_dict={{{kind.__name__}: […]}}."
            )
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if unknown := [name for name in (*(allowed or ()), *disallowed) if name not in modules]:
        say(verbosity, 1, f"Warning: {unknown} are not layers of this model")
    eligible: dict[int, Weight] = {}
    for layer, module in modules.items():
        if isinstance(module, types) and layer not in disallowed and (allowed is None or layer in allowed):
            names = next(table[parent] for parent in type(module).__mro__ if parent in table)
            for name, parameter in module.named_parameters():
                if _eligible(f"{layer}::{name}", parameter, name in names, verbosity):
                    full = f"{layer}.{name}" if layer else name
                    eligible.setdefault(
                        id(parameter), Weight(full, type(module).__name__, parameter, None, layer, module)
                    )
    return list(eligible.values())


def _eligible(name: str, parameter: nn.Parameter, listed: bool, verbosity: int) -> bool:
    described = f"{name} of size={parameter.shape} and type={parameter.dtype}"
    if not listed or not parameter.requires_grad:
        say(verbosity, 3, f"Not sparsifying {described}")
        return False
    # not a shape of sparse Tensor Cores
    if parameter.dim() < 2 or parameter.size(0) % 8 or parameter.size(1) % 16:
        say(verbosity, 1, f"Auto skipping pruning {described} for sparsity")
        return False
    say(verbosity, 3, f"Sparsifying {described} for sparsity")
    return True


def say(verbosity: int, level: int, text: str) -> None:
    """Print in the first process if the verbosity is at least `level`."""
    if verbosity >= level and rank_and_world()[0] == 0:
        print(f"[ASP] {text}")
