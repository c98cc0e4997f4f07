"""ASP: apex's class-level interface to the pruning of the model that was initialised last."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.compat.asp.eligible import PARAMETERS, find, pattern_of
from mpx.compat.asp.pruning import Pruning
from mpx.errors import UserError


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
            arguments or a dict of keyword arguments; a list of these, one for each way to call the model.
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
            allow_permutation=allow_permutation, example_input=example_input,
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
    ) -> Pruning:
        """Prune once before further training: init_model_for_pruning with Linear, Conv2d and attention,
        init_optimizer_for_pruning, and compute_sparse_masks."""
        pruning = cls.init_model_for_pruning(
            model,
            verbosity=2,
            whitelist=[nn.Linear, nn.Conv2d, nn.MultiheadAttention],
            allow_permutation=allow_permutation,
            example_input=example_input,
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
