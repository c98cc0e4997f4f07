"""The pruning of one model: its masks, the optimizers that they are held in, and the values that were pruned."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.compat.amp.casting import MASTER, agreeing
from mpx.compat.amp.session import processes
from mpx.compat.asp.calculators import calculator, checked, m4n2_1d
from mpx.compat.asp.eligible import find
from mpx.compat.asp.hold import Hold, versions
from mpx.compat.asp.permuting import permute
from mpx.errors import UserError


class Pruning:
    """What ASP.init_model_for_pruning makes and returns, which describes the arguments and has their defaults. No masks until
    compute_sparse_masks."""

    def __init__(
        self,
        model: nn.Module,
        mask_calculator: str | Callable[[Tensor], Tensor],
        verbosity: int,
        whitelist: Iterable[type],
        allowed_layer_names: list[str] | None,
        disallowed_layer_names: Iterable[str],
        allow_recompute_mask: bool,
        custom_layer_dict: Mapping[type, list[str]] | None,
        allow_permutation: bool,
        example_input: Any,
    ):
        if not isinstance(model, nn.Module):
            raise UserError(f"ASP.init_model_for_pruning: model is a {type(model).__name__}; pass a torch.nn.Module.")
        self._model = ref(model)  # which holds this object
        self.verbosity, self.allow_permutation = verbosity, allow_permutation
        self.calculate, self.recompute, self.example_input = calculator(mask_calculator), allow_recompute_mask, example_input
        self.places = find(model, whitelist, allowed_layer_names, list(disallowed_layer_names), custom_layer_dict or {}, self.say)
        self.pruned: dict[str, Tensor] = {}  # the values at the pruning, zero where they stay; on the CPU, as in apex
        self.hold = Hold(self.places)

    @property
    def masks(self) -> dict[str, Tensor]:
        """By layer::parameter, True stays; empty while sparsity is off."""
        return self.hold.masks

    def say(self, level: int, text: str) -> None:
        """Print from this verbosity on, in the first process."""
        if self.verbosity >= level and processes()[0] == 0:
            print(f"[ASP] {text}")

    def init_optimizer_for_pruning(self, optimizer: Optimizer) -> None:
        """Hold the masks at every step of this optimizer from now on. Several optimizers may be given, one after another."""
        if not isinstance(optimizer, Optimizer):
            raise UserError(f"ASP.init_optimizer_for_pruning: {type(optimizer).__name__} is no torch.optim.Optimizer; pass the one inside.")
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(tensor) in known for place in self.places for tensor in versions(place)):
            self.say(1, f"Warning: this {type(optimizer).__name__} has none of the {len(self.places)} weights that are pruned")
        self.hold.attach(optimizer)

    @torch.no_grad()
    def compute_sparse_masks(self) -> None:
        """Compute the masks from the weights as they are and put them in force; with permutation first, where it is allowed.

        Again only with allow_recompute_mask=True: then from all values, the pruned ones given back. Raises UserError otherwise.
        """
        self._give_back()
        model = self._model()
        if self.allow_permutation and self.places and model is not None:
            self._permute(model)
        masks = {}
        for place in self.places:  # all of them first: a calculator that fails leaves the whole model dense
            weight = exact(place.parameter)
            masks[place.name] = checked(self.calculate(weight), weight, place.name)
        if self.recompute:
            for place in self.places:
                self.pruned[place.name] = exact(place.parameter).masked_fill(masks[place.name], 0).cpu()
        self.hold.masks = masks
        self.hold.everything()
        for place in self.places if self.verbosity >= 2 else ():
            weight, mask = place.parameter, masks[place.name]
            share, magnitude = 100 - 100 * float(mask.sum()) / mask.numel(), float(weight.abs().sum())
            described = f"{place.name} of size={weight.shape} and type={weight.dtype} with magnitude {magnitude:g}"
            self.say(2, f"Enabled {share:.2f}% sparsity for {described}")

    def _permute(self, model: nn.Module) -> None:
        if self.calculate is not m4n2_1d:
            self.say(2, "No permutation: it is made for m4n2_1d")
            return
        with torch.enable_grad():
            reason = permute(model, self.places, self.hold.optimizers(), self.example_input)
        if reason is None:
            self.say(2, "Permuted the channels of the model")
        else:
            self.say(1, f"Going on without permutation: {reason}")

    @torch.no_grad()
    def restore_pruned_weights(self) -> None:
        """Switch sparsity off and give the pruned weights their values back, bit for bit. Needs allow_recompute_mask=True."""
        for name in self._give_back():
            self.say(2, f"Disabled sparsity for {name} (dense weights restored)")

    def _give_back(self) -> list[str]:
        """The names of what was pruned."""
        if len(self.pruned) < len(self.masks):
            raise UserError("ASP: the pruned values were not kept. Pass allow_recompute_mask=True to init_model_for_pruning.")
        for tensor, mask, name in self.hold.tensors():
            tensor.copy_(torch.where(mask, tensor, self.pruned[name].to(tensor)))
        names = list(self.masks)
        self.hold.masks, self.pruned = {}, {}
        return names

    def is_sparsity_enabled(self) -> bool:
        """Whether masks are in force."""
        return bool(self.masks)

    def state_dict(self) -> dict[str, Any]:
        """Masks and pruned values, by layer::parameter; model.state_dict() holds neither."""
        return {"masks": dict(self.masks), "pruned": dict(self.pruned)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved masks, without permuting: load the weights they belong to first. Raises UserError if they do not fit."""
        shapes = {place.name: place.parameter.shape for place in self.places}
        masks, pruned = state["masks"], state["pruned"]
        if masks and {name: mask.shape for name, mask in masks.items()} != shapes:
            strange = next(name for name in (*masks, *shapes) if name not in masks or masks[name].shape != shapes.get(name))
            raise UserError(
                f"ASP.load_state_dict: the masks do not fit this model at {strange}. Initialise it as the one they were saved from."
            )
        self.hold.masks, self.pruned = {name: mask.bool() for name, mask in masks.items()}, dict(pruned)
        self.hold.everything()

    def detach(self) -> None:
        """Let the optimizers go; the weights stay as they are."""
        self.hold.detach()

    def __deepcopy__(self, memo: dict) -> None:
        return None  # a copy of the model is a plain model

    def __reduce__(self) -> tuple:
        return type(None), ()  # and so is a pickled one


def exact(weight: Tensor) -> Tensor:
    """The weight's values, as precise as they are kept."""
    return weight.detach() if getattr(weight, MASTER, None) is None else agreeing(weight)
