"""ASP: apex's class-level interface to the pruning of the model that was initialised last; and its choice of
parameters and pattern, by apex's rules (apex/contrib/sparsity/asp.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.compat.asp.pruning import Pruning, say
from mpx.errors import UserError, nearest
from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.tiles import Tiles

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


class ASP:
    """All methods act on the model initialised last. init_model_for_pruning returns a model's own Pruning."""

    _newest: Pruning | None = None

    @classmethod
    def init_model_for_pruning(
        cls,
        model: nn.Module,
        mask_calculator: str | Callable[[Tensor], Tensor] = "m4n2_1d",
        verbosity: int = 3,
        whitelist: Iterable[type] = tuple(PARAMETERS),
        allowed_layer_names: list[str] | None = None,
        disallowed_layer_names: Iterable[str] = (),
        allow_recompute_mask: bool = False,
        custom_layer_dict: Mapping[type, list[str]] | None = None,
        allow_permutation: bool = True,
        *,
        example_input: Any = None,
        exhaustive: bool = False,
    ) -> Pruning:
        """Choose what is pruned and how, without pruning yet. A model that was initialised before starts
        afresh.

        mask_calculator: m4n2_1d, m4n2_2d_best, m4n2_2d_greedy, or a function weight -> mask (True or 1
        stays). verbosity: 0 prints nothing, 1 warnings, 2 actions, 3 every parameter. whitelist: layer types
        to prune, including subclasses. allowed_layer_names: only these layers; None: all.
        disallowed_layer_names: not these. allow_recompute_mask: keep the pruned values for
        restore_pruned_weights and another compute_sparse_masks. custom_layer_dict: further layer types and
        their parameters, {MyLinear: ["weight"]}. allow_permutation: reorder channels before pruning, so that
        m4n2_1d keeps more magnitude; the model's function is
            unchanged. Needs example_input: one batch on the model's device: a tensor, a tuple of positional
            arguments or a dict of keyword arguments; a list of these, one for each way to call the model
            (a decoder of transformers with use_cache=False). exhaustive: there is no other way to call it,
            so that parameters without part in them are never used.
        Raises UserError for an unknown mask or layer type.
        """
        if not isinstance(model, nn.Module):
            raise UserError(
                f"ASP.init_model_for_pruning: model is a {type(model).__name__}; pass a torch.nn.Module."
            )
        weights = find(
            model,
            whitelist,
            allowed_layer_names,
            list(disallowed_layer_names),
            custom_layer_dict or {},
            verbosity,
        )
        cls._newest = Pruning(
            model, weights, pattern_of(mask_calculator), verbosity=verbosity, recompute=allow_recompute_mask,
            allow_permutation=allow_permutation, example_input=example_input, exhaustive=exhaustive,
        )  # fmt: skip
        return cls._newest

    @classmethod
    def _pruning(cls, caller: str) -> Pruning:
        if cls._newest is None:
            raise UserError(
                f"ASP.{caller} before ASP.init_model_for_pruning: call ASP.init_model_for_pruning(model) "
                "first."
            )
        return cls._newest

    @classmethod
    def already_init_asp_model(cls) -> bool:
        """Whether a model has been initialised."""
        return cls._newest is not None

    @classmethod
    def init_optimizer_for_pruning(cls, optimizer: Optimizer) -> None:
        """Enforce the masks at every step of this optimizer. May come before or after amp.initialize and LR
        schedulers; before compute_sparse_masks if the optimizer has stepped, since its state is permuted with
        the channels.
        """
        cls._pruning("init_optimizer_for_pruning").init_optimizer_for_pruning(optimizer)

    @classmethod
    def compute_sparse_masks(cls) -> None:
        """Switch sparsity on: permute if allowed, compute the masks, zero the pruned weights."""
        cls._pruning("compute_sparse_masks").compute_sparse_masks()

    @classmethod
    def restore_pruned_weights(cls) -> None:
        """Switch sparsity off and restore the pruned values bit for bit. Needs allow_recompute_mask=True."""
        cls._pruning("restore_pruned_weights").restore_pruned_weights()

    @classmethod
    def is_sparsity_enabled(cls) -> bool:
        """Whether masks are applied."""
        return cls._pruning("is_sparsity_enabled").is_sparsity_enabled()

    @classmethod
    def prune_trained_model(
        cls,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        allow_permutation: bool = True,
        example_input: Any = None,
        exhaustive: bool = False,
    ) -> Pruning:
        """Prune once before further training: init_model_for_pruning with Linear, Conv2d and attention,
        init_optimizer_for_pruning, and compute_sparse_masks."""
        pruning = cls.init_model_for_pruning(
            model,
            verbosity=2,
            whitelist=[nn.Linear, nn.Conv2d, nn.MultiheadAttention],
            allow_permutation=allow_permutation,
            example_input=example_input,
            exhaustive=exhaustive,
        )
        pruning.init_optimizer_for_pruning(optimizer)
        pruning.compute_sparse_masks()
        return pruning

    @classmethod
    def set_permutation_saving_params(
        cls,
        allow_permutation: bool = True,
        save_permutation_graph: bool = False,
        permutation_output_dir: str = ".",
    ) -> None:
        """apex's method, to call after init_model_for_pruning. No permutation graphs are saved."""
        cls._pruning("set_permutation_saving_params").allow_permutation = allow_permutation


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
