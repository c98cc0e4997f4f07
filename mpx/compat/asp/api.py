"""ASP: apex's class-level interface to Pruning, the pruning of one model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.compat.asp.checkpoints import PRUNING, join_state_dict
from mpx.compat.asp.eligible import WHITELIST
from mpx.compat.asp.pruning import Pruning
from mpx.errors import UserError


class ASP:
    """All methods act on the model initialised last, or on the one given as model=. ASP.of(model) returns its Pruning."""

    _newest: Callable[[], nn.Module | None] = staticmethod(lambda: None)  # a weak reference, so that ASP keeps no model alive

    @classmethod
    def init_model_for_pruning(
        cls,
        model: nn.Module,
        mask_calculator: str | Callable[[Tensor], Tensor] = "m4n2_1d",
        verbosity: int = 3,
        whitelist: Iterable[type] = WHITELIST,
        allowed_layer_names: list[str] | None = None,
        disallowed_layer_names: Iterable[str] = (),
        allow_recompute_mask: bool = False,
        custom_layer_dict: Mapping[type, list[str]] | None = None,
        allow_permutation: bool = True,
        *,
        example_input: Any = None,
        masks_in_state_dict: bool = False,
    ) -> Pruning:
        """Choose what is pruned and how, without pruning yet. A model that was initialised before starts afresh, without its optimizers.

        mask_calculator: m4n2_1d, m4n2_2d_best, m4n2_2d_greedy, or a function weight -> mask (True or 1 stays).
        verbosity: 0 prints nothing, 1 warnings, 2 actions, 3 every parameter. whitelist: layer types to prune, including subclasses.
        allowed_layer_names: only these layers; None: all. disallowed_layer_names: not these.
        allow_recompute_mask: keep the pruned values in CPU memory for restore_pruned_weights and another compute_sparse_masks.
        custom_layer_dict: further layer types and their parameters, {MyLinear: ["weight"]}.
        allow_permutation: reorder channels before pruning, so that m4n2_1d keeps more magnitude; the model's function is unchanged.
        example_input: for the permutation, one batch on the model's device: a tensor, a tuple of positional arguments or a dict of keyword
            arguments; a list of these, one for each way to call the model. None: guessed.
        masks_in_state_dict: model.state_dict() also has the masks as apex's buffers, and with allow_recompute_mask the pruned values.
        Raises UserError for an unknown mask or layer type.
        """
        pruning = Pruning(
            model, mask_calculator, verbosity, whitelist, allowed_layer_names, disallowed_layer_names, allow_recompute_mask,
            custom_layer_dict, allow_permutation, example_input, masks_in_state_dict,
        )  # fmt: skip
        if (before := model.__dict__.get(PRUNING)) is not None:
            before.enforcer.detach()
        elif PRUNING not in model.__dict__:  # a copy of an initialised model already has the hooks
            join_state_dict(model)
        model.__dict__[PRUNING] = pruning
        cls._newest = ref(model)
        return pruning

    @classmethod
    def of(cls, model: nn.Module | None = None, caller: str = "ASP.of") -> Pruning:
        """The Pruning of this model, by default the model initialised last. Raises UserError if there is none."""
        model = cls._newest() if model is None else model
        pruning = None if model is None else getattr(model, "__dict__", {}).get(PRUNING)
        if pruning is None:
            raise UserError(f"{caller} before ASP.init_model_for_pruning: call ASP.init_model_for_pruning(model) first.")
        return pruning

    @classmethod
    def init_optimizer_for_pruning(cls, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        """Enforce the masks at every step of this optimizer. May come before or after amp.initialize and LR schedulers, and before or
        after compute_sparse_masks; before it if the optimizer has stepped, since its state is permuted with the channels."""
        cls.of(model, "ASP.init_optimizer_for_pruning").init_optimizer_for_pruning(optimizer)

    @classmethod
    def compute_sparse_masks(cls, model: nn.Module | None = None) -> None:
        """Switch sparsity on: permute if allowed, compute the masks, zero the pruned weights."""
        cls.of(model, "ASP.compute_sparse_masks").compute_sparse_masks()

    @classmethod
    def restore_pruned_weights(cls, model: nn.Module | None = None) -> None:
        """Switch sparsity off and restore the pruned values bit for bit. Needs allow_recompute_mask=True."""
        cls.of(model, "ASP.restore_pruned_weights").restore_pruned_weights()

    @classmethod
    def is_sparsity_enabled(cls, model: nn.Module | None = None) -> bool:
        """Whether masks are applied."""
        return cls.of(model, "ASP.is_sparsity_enabled").is_sparsity_enabled()

    @classmethod
    def already_init_asp_model(cls, model: nn.Module | None = None) -> bool:
        """Whether this model has been initialised; by default, whether any existing model has."""
        model = cls._newest() if model is None else model
        return model is not None and model.__dict__.get(PRUNING) is not None

    @classmethod
    def prune_trained_model(
        cls, model: nn.Module, optimizer: Optimizer, *,
        allow_permutation: bool = True, example_input: Any = None, masks_in_state_dict: bool = False,
    ) -> Pruning:  # fmt: skip
        """Prune once before further training: init_model_for_pruning with Linear, Conv2d and attention, init_optimizer_for_pruning, and
        compute_sparse_masks."""
        pruning = cls.init_model_for_pruning(
            model,
            mask_calculator="m4n2_1d",
            verbosity=2,
            whitelist=[nn.Linear, nn.Conv2d, nn.MultiheadAttention],
            allow_permutation=allow_permutation,
            example_input=example_input,
            masks_in_state_dict=masks_in_state_dict,
        )
        pruning.init_optimizer_for_pruning(optimizer)
        pruning.compute_sparse_masks()
        return pruning

    @classmethod
    def permute_copies(cls, *copies: nn.Module | Mapping[str, Tensor], model: nn.Module | None = None) -> None:
        """Apply the permutation of compute_sparse_masks to copies of the weights (averages, teachers) that were made before it.

        copies: modules, such as torch.optim.swa_utils.AveragedModel, or tensors by their names in the model's state_dict. Changed in
        place; pass each copy once. Raises UserError for a copy of another model, and before compute_sparse_masks.
        """
        cls.of(model, "ASP.permute_copies").permute_copies(*copies)

    @classmethod
    def state_dict(cls, model: nn.Module | None = None) -> dict[str, Any]:
        """The masks and the kept pruned values, to save beside model.state_dict()."""
        return cls.of(model, "ASP.state_dict").state_dict()

    @classmethod
    def load_state_dict(cls, state: Mapping[str, Any], model: nn.Module | None = None) -> None:
        """Continue with saved masks; load the weights first."""
        cls.of(model, "ASP.load_state_dict").load_state_dict(state)

    @classmethod
    def set_permutation_saving_params(
        cls, allow_permutation: bool = True, save_permutation_graph: bool = False, permutation_output_dir: str = "."
    ) -> None:
        """apex's method, to call after init_model_for_pruning. mpx saves no permutation graphs."""
        pruning = cls.of(None, "ASP.set_permutation_saving_params")
        pruning.allow_permutation = allow_permutation
        if save_permutation_graph:
            pruning.say(1, f"Warning: no permutation graph is saved in {permutation_output_dir!r}")
