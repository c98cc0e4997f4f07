"""The pruning of one model: mpx.sparsity's masks, held at every step of its optimizers and saved in its
state_dict.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mpx.compat.amp.casts import MASTER
from mpx.errors import UserError
from mpx.precision.ops import with_closure
from mpx.sparsity.layers import Weight
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM, Pattern
from mpx.system.processes import rank_and_world

PRUNING = "_mpx_asp"  # attribute of a model for its Pruning, which no state_dict contains
NO_MASKS = {"masks": {}, "kept": {}, "stash": {}, "complete": False}
WRAPPERS = nn.DataParallel | nn.parallel.DistributedDataParallel


class Pruning:
    """The result of ASP.init_model_for_pruning, which documents the arguments. It has no masks until
    compute_sparse_masks.
    """

    def __init__(
        self, model: nn.Module, weights: list[Weight], pattern: Pattern, *, verbosity: int, recompute: bool,
        allow_permutation: bool, example_input: Any, exhaustive: bool,
    ):  # fmt: skip
        self.masks = Masks(weights, pattern, remember=recompute)
        self.verbosity, self.allow_permutation = verbosity, allow_permutation
        self.example_input, self.exhaustive = example_input, exhaustive
        self.optimizers: list[Optimizer] = []
        self._model = ref(model)  # weak, since the model owns this object
        self._hooks: list[RemovableHandle] = []
        self._permuted = False
        # ids of the optimizers that have stepped without moving pruned weights
        self._proven: set[int] = set()
        if (before := model.__dict__.get(PRUNING)) is not None:
            before.detach()
        elif PRUNING not in model.__dict__:  # a copy of an initialised model already has the hooks
            model.register_load_state_dict_pre_hook(_take_masks)
            model.register_state_dict_post_hook(_write_masks)
        model.__dict__[PRUNING] = self

    def detach(self) -> None:
        """Remove the hooks from the optimizers. Weights and optimizer state do not change."""
        for hook in self._hooks:
            hook.remove()

    def _bind(self) -> None:
        """Mask what the optimizers step: a weight, or its FP32 master weight if mpx.compat.amp keeps one."""
        model = self._model()
        if model is not None:
            named = dict(model.named_parameters(remove_duplicate=False))
            self.masks.bind(
                {name: getattr(parameter, MASTER, parameter) for name, parameter in named.items()}
            )

    @torch.no_grad()
    def _copy_masters(self) -> None:
        if (model := self._model()) is not None:
            for weight in self.masks.pruned:
                parameter = model.get_parameter(weight.name)
                if parameter is not weight.parameter:
                    parameter.copy_(weight.parameter)

    def init_optimizer_for_pruning(self, optimizer: Optimizer) -> None:
        """Enforce the masks at every further step of this optimizer."""
        if not isinstance(optimizer, Optimizer):
            name = type(optimizer).__name__
            raise UserError(
                f"ASP.init_optimizer_for_pruning: {name} is not a torch.optim.Optimizer; pass "
                "the optimizer that it wraps."
            )
        if any(optimizer is known for known in self.optimizers):
            return
        if self._permuted and optimizer.state:
            raise UserError(
                "ASP.init_optimizer_for_pruning: the channels have been permuted, and the state of this "
                f"{type(optimizer).__name__} has the old order. Call it before compute_sparse_masks."
            )
        self.optimizers.append(optimizer)
        self._hooks += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if self.masks.active:
            self._bind()
            self.masks.zero_state(optimizer)

    def _before_step(
        self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """A closure computes its gradients inside the step, so it is wrapped to mask them."""
        if not self.masks.active:
            return None
        self._bind()
        self.masks.mask_gradients()
        return with_closure(args, kwargs, self._masked)

    def _masked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def masked() -> Any:
            loss = closure()
            self.masks.mask_gradients()
            return loss

        return masked

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        """With zero gradients and a zero state no optimizer moves a zero weight, but those that use no
        gradients. Verified once, since it waits for the device.
        """
        if self.masks.active and id(optimizer) not in self._proven:
            self._proven.add(id(optimizer))
            if broken := self.masks.verify([optimizer]):
                raise UserError(
                    f"ASP: a step of {type(optimizer).__name__} moves pruned weights "
                    f"({broken[0]}). Use another optimizer."
                )

    def compute_sparse_masks(self) -> None:
        """Permute if allowed, then compute the masks from the current weights and apply them.

        A repeated call restores the pruned values first and needs allow_recompute_mask=True. Raises UserError
        otherwise.
        """
        if self.masks.active:
            self.restore_pruned_weights()
        self._bind()
        self._permuted = self.allow_permutation and self._permute()
        self.masks.prune(self.optimizers)
        self._copy_masters()
        self._proven.clear()
        for weight in self.masks.pruned if self.verbosity >= 2 else ():
            share = 100 - 100 * float(self.masks.masks[weight.name].float().mean())
            say(
                self.verbosity,
                2,
                f"Enabled {share:.2f}% sparsity for {weight.name} of size={weight.parameter.shape}",
            )

    def _permute(self) -> bool:
        """Whether channels were reordered. Prints one line."""
        model = self._model()
        model = model.module if isinstance(model, WRAPPERS) else model
        if model is None or not isinstance(self.masks.pattern, NofM):
            return False
        if self.example_input is None or "forward" in model.__dict__:
            say(
                self.verbosity,
                1,
                "Going on without permutation: it needs example_input=, one batch, and comes "
                "before amp.initialize",
            )
            return False
        from mpx.sparsity.permutation import permute_model  # imports scipy and the tracer

        with torch.enable_grad():
            report = permute_model(
                model,
                self.example_input,
                exhaustive=self.exhaustive,
                weights=self.masks.weights,
                optimizer=self.optimizers,
                progress=self.verbosity > 1,
            )
        kept = f"2:4 keeps {100 * report.kept_before:.2f}% -> {100 * report.kept_after:.2f}% of the magnitude"
        count = sum(layer["permuted"] for layer in report.layers)
        moved = f"the inputs of {count} of {len(report.layers)} weights"
        say(self.verbosity, 2, f"Permuted the channels of the model: {moved}. {report.reason or kept}")
        return bool(report.permutation.indices)

    def restore_pruned_weights(self) -> None:
        """Switch sparsity off and restore the pruned values bit for bit. Needs allow_recompute_mask=True."""
        if self.masks.active and not self.masks.remember:
            raise UserError(
                "ASP: the pruned values were not kept. Pass allow_recompute_mask=True to "
                "init_model_for_pruning."
            )
        self._bind()
        self.masks.restore()
        self.masks.load_state_dict(NO_MASKS)
        self._copy_masters()
        for weight in self.masks.pruned:
            say(self.verbosity, 2, f"Disabled sparsity for {weight.name} (dense weights restored)")

    def is_sparsity_enabled(self) -> bool:
        """Whether masks are applied."""
        return self.masks.active

    def take(self, masks: dict[str, Tensor], stash: dict[str, Tensor]) -> None:
        """Continue with saved masks and pruned values. Raises UserError if the masks do not fit."""
        try:
            self._bind()
            self.masks.load_state_dict(NO_MASKS | {"masks": masks, "stash": stash, "complete": True})
        except ValueError as error:
            raise UserError(f"ASP: {error}. Initialise the model as the one that was saved.") from error
        # otherwise the pruned values are in the state, and the weights zero
        if not self.masks.remember:
            self.masks.apply()
        for optimizer in self.optimizers:
            self.masks.zero_state(optimizer)

    def __deepcopy__(self, memo: dict) -> None:
        return None  # a copy of the model is a plain model

    def __reduce__(self) -> tuple:
        return type(None), ()  # and so is a pickled one


def _buffers(weight: Weight, prefix: str) -> tuple[str, str]:
    """apex's names of a weight's buffers: its mask, its pruned values."""
    stem = f"{prefix}{weight.layer}." if weight.layer else prefix
    parameter = weight.name.rpartition(".")[2]
    return f"{stem}__{parameter}_mma_mask", f"{stem}__{parameter}_mma_pruned_p"


def _take_masks(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a state_dict is loaded: take apex's buffers out of it, and continue with its masks."""
    if (pruning := module.__dict__.get(PRUNING)) is None:
        return
    masks: dict[str, Tensor] = {}
    stash: dict[str, Tensor] = {}
    for weight in pruning.masks.pruned:
        for part, name in zip((masks, stash), _buffers(weight, prefix), strict=True):
            if name in state_dict:
                part[weight.name] = state_dict.pop(name)
    masks = {name: mask.bool() for name, mask in masks.items()}
    if any(not mask.all() for mask in masks.values()):  # apex's masks are all ones until they are computed
        pruning.take(masks, stash)


def _write_masks(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    if (pruning := module.__dict__.get(PRUNING)) is None:
        return
    for weight in pruning.masks.pruned:
        mask, values = _buffers(weight, prefix)
        state_dict[mask] = pruning.masks.masks.get(
            weight.name, torch.ones_like(weight.parameter, dtype=torch.bool)
        )
        if pruning.masks.remember:
            state_dict[values] = (
                pruning.masks.stash.get(weight.name, torch.zeros_like(weight.parameter)).detach().cpu()
            )


def say(verbosity: int, level: int, text: str) -> None:
    """Print in the first process if the verbosity is at least `level`."""
    if verbosity >= level and rank_and_world()[0] == 0:
        print(f"[ASP] {text}")
