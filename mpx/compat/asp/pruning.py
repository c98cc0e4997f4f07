"""The pruning of one model: its masks, the optimizers that enforce them, and the pruned values."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.compat.asp.adopting import infer_masks
from mpx.compat.asp.calculators import calculator, checked, m4n2_1d
from mpx.compat.asp.eligible import find
from mpx.compat.asp.enforce import Enforcer, full_precision, with_master
from mpx.errors import UserError
from mpx.processes import rank_and_world


class Pruning:
    """The result of ASP.init_model_for_pruning, which documents the arguments and has their defaults. It has no masks until
    compute_sparse_masks, unless they can be inferred from the weights."""

    def __init__(
        self, model: nn.Module, mask_calculator: str | Callable[[Tensor], Tensor], verbosity: int, whitelist: Iterable[type],
        allowed_layer_names: list[str] | None, disallowed_layer_names: Iterable[str], allow_recompute_mask: bool,
        custom_layer_dict: Mapping[type, list[str]] | None, allow_permutation: bool, example_input: Any, masks_in_state_dict: bool,
    ):  # fmt: skip
        if not isinstance(model, nn.Module):
            raise UserError(f"ASP.init_model_for_pruning: model is a {type(model).__name__}; pass a torch.nn.Module.")
        self._model = ref(model)  # weak, since the model owns this object
        self.verbosity, self.allow_permutation, self.masks_in_state_dict = verbosity, allow_permutation, masks_in_state_dict
        self.calculate, self.recompute, self.example_input = calculator(mask_calculator), allow_recompute_mask, example_input
        self.places = find(model, whitelist, allowed_layer_names, list(disallowed_layer_names), custom_layer_dict or {}, self.say)
        self.enforcer = Enforcer(self.places, self._before_step)
        self.pruned: dict[str, Tensor] = {}  # the pruned values, zero where weights stay; on the CPU, as in apex
        self._adopted: Set[str] = frozenset()  # names of inferred masks, whose pruned values are unknown
        self._settled = False  # masks were computed, loaded or looked for
        self._stepped = False  # an optimizer stepped with masks
        self._permutation = None  # the channel permutation of the last compute_sparse_masks

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks by layer::parameter, True stays; empty while sparsity is off."""
        return self.enforcer.masks

    def say(self, level: int, text: str) -> None:
        """Print in the first process if the verbosity is at least `level`."""
        if self.verbosity >= level and rank_and_world()[0] == 0:
            print(f"[ASP] {text}")

    def init_optimizer_for_pruning(self, optimizer: Optimizer) -> None:
        """Enforce the masks at every further step of this optimizer. Call it once per optimizer."""
        if not isinstance(optimizer, Optimizer):
            name = type(optimizer).__name__
            raise UserError(f"ASP.init_optimizer_for_pruning: {name} is not a torch.optim.Optimizer; pass the optimizer that it wraps.")
        if not self.enforcer.stepped_by(optimizer):
            self.say(1, f"Warning: this {type(optimizer).__name__} has none of the {len(self.places)} weights that are pruned")
        if self._permutation is not None and optimizer not in self.enforcer.optimizers() and self._left_behind(optimizer):
            what = "has stepped before compute_sparse_masks permuted the channels, and its state still has the old order"
            self.say(1, f"Warning: this {type(optimizer).__name__} {what}. Call init_optimizer_for_pruning before compute_sparse_masks.")
        self.enforcer.attach(optimizer)

    def _left_behind(self, optimizer: Optimizer) -> bool:
        """Whether it has state of weights whose channels were permuted."""
        from mpx.compat.asp.permuting import unwrapped

        moved = {axis.name for axis in self._permutation.indices}
        weights = unwrapped(self._model()).named_parameters(remove_duplicate=False)
        tensors = [tensor for name, weight in weights if name in moved for tensor in with_master(weight)]
        return any(isinstance(value, Tensor) and value.dim() for one in tensors for value in optimizer.state.get(one, {}).values())

    @torch.no_grad()
    def compute_sparse_masks(self) -> None:
        """Permute if allowed, then compute the masks from the current weights and apply them.

        A repeated call restores the pruned values first and needs allow_recompute_mask=True. Raises UserError otherwise.
        """
        self._give_back()
        self._permutation = None
        if self.allow_permutation and self.places and (model := self._model()) is not None:
            self._permute(model)
        masks, pruned = {}, {}
        for place in self.places:  # compute all masks before applying any, so that a failure leaves the whole model dense
            weight = full_precision(place.parameter)
            mask = masks[place.name] = checked(self.calculate(weight), weight, place.name)
            if self.recompute:
                pruned[place.name] = weight.masked_fill(mask, 0).cpu()
        self._put_in_force(masks, pruned)
        for place in self.places if self.verbosity >= 2 else ():
            weight, mask = place.parameter, masks[place.name]
            share, magnitude = 100 - 100 * float(mask.sum()) / mask.numel(), float(weight.abs().sum())
            described = f"{place.name} of size={weight.shape} and type={weight.dtype} with magnitude {magnitude:g}"
            self.say(2, f"Enabled {share:.2f}% sparsity for {described}")

    def _permute(self, model: nn.Module) -> None:
        if self.calculate is not m4n2_1d:
            self.say(2, "No permutation: it is made for m4n2_1d")
            return
        from mpx.compat.asp.permuting import permute, summary  # imports scipy and the tracer

        with torch.enable_grad():
            report = permute(model, self.places, self.enforcer.optimizers(), self.example_input, self.say, progress=self.verbosity > 1)
        self._permutation = report.permutation
        self.say(2 if report.permutation.indices else 1, summary(report))
        if report.permutation.indices:
            self.say(2, "Copies of the weights made before, such as averages, need ASP.permute_copies(copy)")

    def permute_copies(self, *copies: nn.Module | Mapping[str, Tensor]) -> None:
        """See ASP.permute_copies."""
        if self._permutation is not None:
            from mpx.compat.asp.permuting import permute_copy

            for copy in copies:
                permute_copy(self._permutation, copy)
        elif not self.masks:
            raise UserError("ASP.permute_copies before ASP.compute_sparse_masks: no channels have been permuted yet.")

    def restore_pruned_weights(self) -> None:
        """Switch sparsity off and restore the pruned values bit for bit. Needs allow_recompute_mask=True.

        Masks adopted from a state_dict are always switched off; their pruned values are unknown and stay zero.
        """
        if self._adopted:
            self.say(1, "Warning: the state_dict that the masks were adopted from has no pruned values; these stay zero")
        for name in self._give_back():
            self.say(2, f"Disabled sparsity for {name} (dense weights restored)")

    @torch.no_grad()
    def _give_back(self) -> list[str]:
        """Restore the pruned values, switch sparsity off, and return the names of the restored weights."""
        if not self.masks.keys() <= self.pruned.keys() | self._adopted:
            raise UserError("ASP: the pruned values were not kept. Pass allow_recompute_mask=True to init_model_for_pruning.")
        for tensor, mask, name in self.enforcer.tensors():
            if name in self.pruned:
                tensor.copy_(torch.where(mask, tensor, self.pruned[name].to(tensor)))
        names = list(self.pruned)
        self._put_in_force({}, {})
        return names

    def is_sparsity_enabled(self) -> bool:
        """Whether masks are applied."""
        if not self._settled:
            self.adopt()
        return bool(self.masks)

    def _before_step(self) -> None:
        # Inferring masks waits for the device, which a CUDA graph capture forbids.
        if not self._settled and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            self.adopt()
        if self.masks and not self._stepped:
            self._stepped = True
            if rest := self.enforcer.unclaimed():
                what = f"{len(rest)} pruned weights, such as {rest[0].name}, are in no optimizer given to init_optimizer_for_pruning"
                self.say(1, f"Warning: {what}; they are zeroed whenever another optimizer steps")

    def adopt(self) -> None:
        """Infer masks for weights that already have the pattern but no matching mask, such as those of a loaded state_dict."""
        self._settled = True
        found, strange = infer_masks(self.places, self.masks, self.calculate)
        if found:
            dense = {place.name: torch.ones_like(place.parameter, dtype=torch.bool) for place in self.places}
            pruned = {name: values for name, values in self.pruned.items() if name not in found}
            self._put_in_force(dense | self.masks | found, pruned, dense.keys() - pruned.keys())
            rest = [name for name, mask in self.masks.items() if mask.all()]
            others = f"; {len(rest)} stay dense, such as {rest[0]}" if rest else ""
            self.say(1, f"{len(found)} of {len(self.places)} weights are pruned already: masks adopted from their zeros{others}")
        if strange:
            what = f"{len(strange)} weights, such as {strange[0]}, are not zero where their masks prune; the next step prunes them"
            self.say(1, f"Warning: in the loaded state_dict {what}. Load it before compute_sparse_masks.")

    def _put_in_force(self, masks: dict[str, Tensor], pruned: dict[str, Tensor], adopted: Set[str] = frozenset()) -> None:
        self.enforcer.masks, self.pruned, self._adopted, self._settled = masks, pruned, adopted, True
        self.enforcer.zero_all()

    def state_dict(self) -> dict[str, Any]:
        """Masks and pruned values, by layer::parameter. model.state_dict() has the masks only with masks_in_state_dict=True."""
        return {"masks": dict(self.masks) if self.is_sparsity_enabled() else {}, "pruned": dict(self.pruned)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved masks, without permuting. Load their weights first. Raises UserError if the masks do not fit."""
        shapes = {place.name: place.parameter.shape for place in self.places}
        if not {"masks", "pruned"} <= state.keys():
            got = ", ".join(list(state)[:3])
            raise UserError(f"ASP.load_state_dict: got a dictionary with {got or 'nothing'}; pass what ASP.state_dict() returned.")
        masks, pruned = state["masks"], state["pruned"]
        if masks and {name: mask.shape for name, mask in masks.items()} != shapes:
            strange = next(name for name in (*masks, *shapes) if name not in masks or masks[name].shape != shapes.get(name))
            raise UserError(
                f"ASP.load_state_dict: the masks do not fit this model at {strange}. Initialise it as the one they were saved from."
            )
        self._put_in_force({name: mask.bool() for name, mask in masks.items()}, dict(pruned))
        self._settled = bool(masks)

    def __deepcopy__(self, memo: dict) -> None:
        return None  # a copy of the model is a plain model

    def __reduce__(self) -> tuple:
        return type(None), ()  # and so is a pickled one
