"""The pruning of one model: its masks, the optimizers that they are held in, and the values that were pruned."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.compat.amp.session import processes
from mpx.compat.asp.adopting import look
from mpx.compat.asp.calculators import calculator, checked, m4n2_1d
from mpx.compat.asp.eligible import find
from mpx.compat.asp.hold import Hold, exact
from mpx.errors import UserError


class Pruning:
    """What ASP.init_model_for_pruning makes and returns, which describes the arguments and has their defaults. No masks until
    compute_sparse_masks, unless the weights show them."""

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
        masks_in_state_dict: bool,
    ):
        if not isinstance(model, nn.Module):
            raise UserError(f"ASP.init_model_for_pruning: model is a {type(model).__name__}; pass a torch.nn.Module.")
        self._model = ref(model)  # which holds this object
        self.verbosity, self.allow_permutation, self.masks_in_state_dict = verbosity, allow_permutation, masks_in_state_dict
        self.calculate, self.recompute, self.example_input = calculator(mask_calculator), allow_recompute_mask, example_input
        self.places = find(model, whitelist, allowed_layer_names, list(disallowed_layer_names), custom_layer_dict or {}, self.say)
        self.hold = Hold(self.places, self._before_step)
        self.pruned: dict[str, Tensor] = {}  # the values at the pruning, zero where they stay; on the CPU, as in apex
        self._adopted: Set[str] = frozenset()  # names of masks that the weights showed: nobody knows what these pruned
        self._settled = False  # masks were computed, loaded or looked for
        self._stepped = False  # with masks in force
        self._permutation = None  # of the channels, by the newest compute_sparse_masks

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
        if not self.hold.stepped_by(optimizer):
            self.say(1, f"Warning: this {type(optimizer).__name__} has none of the {len(self.places)} weights that are pruned")
        self.hold.attach(optimizer)

    @torch.no_grad()
    def compute_sparse_masks(self) -> None:
        """Compute the masks from the weights as they are and put them in force; with permutation first, where it is allowed.

        Again only with allow_recompute_mask=True: then from all values, the pruned ones given back. Raises UserError otherwise.
        """
        self._give_back()
        self._permutation = None
        if self.allow_permutation and self.places and (model := self._model()) is not None:
            self._permute(model)
        masks, pruned = {}, {}
        for place in self.places:  # all of them first: a calculator that fails leaves the whole model dense
            weight = exact(place.parameter)
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
        from mpx.compat.asp.permuting import in_words, permute  # scipy, and the tracer

        with torch.enable_grad():
            report = permute(model, self.places, self.hold.optimizers(), self.example_input, self.say)
        self._permutation = report.permutation
        self.say(2 if report.permutation.indices else 1, in_words(report))
        if report.permutation.indices:
            self.say(2, "Copies of the weights made before, such as averages, need ASP.permute_copies(copy)")

    def permute_copies(self, *copies: nn.Module | Mapping[str, Tensor]) -> None:
        """Reorder copies of the weights, made before compute_sparse_masks, as it reordered the model's channels. Each copy once.

        copies: modules, such as torch.optim.swa_utils.AveragedModel, or tensors by their names in the model's state_dict; changed in
        place. Raises UserError for what is no copy of this model, and before compute_sparse_masks.
        """
        if self._permutation is not None:
            from mpx.compat.asp.permuting import permute_copy

            for copy in copies:
                permute_copy(self._permutation, copy)
        elif not self.masks:
            raise UserError("ASP.permute_copies before ASP.compute_sparse_masks: no channels have been permuted yet.")

    def restore_pruned_weights(self) -> None:
        """Switch sparsity off and give the pruned weights their values back, bit for bit. Needs allow_recompute_mask=True.

        Masks that were adopted from a state_dict are switched off in any case; what they pruned is not known and stays zero.
        """
        if self._adopted:
            self.say(1, "Warning: the state_dict that the masks were adopted from has no pruned values; these stay zero")
        for name in self._give_back():
            self.say(2, f"Disabled sparsity for {name} (dense weights restored)")

    @torch.no_grad()
    def _give_back(self) -> list[str]:
        """The names of what had values to give back."""
        if not self.masks.keys() <= self.pruned.keys() | self._adopted:
            raise UserError("ASP: the pruned values were not kept. Pass allow_recompute_mask=True to init_model_for_pruning.")
        for tensor, mask, name in self.hold.tensors():
            if name in self.pruned:
                tensor.copy_(torch.where(mask, tensor, self.pruned[name].to(tensor)))
        names = list(self.pruned)
        self._put_in_force({}, {})
        return names

    def is_sparsity_enabled(self) -> bool:
        """Whether masks are in force."""
        if not self._settled:
            self.adopt()
        return bool(self.masks)

    def _before_step(self) -> None:
        if not self._settled and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):  # looking waits
            self.adopt()
        if self.masks and not self._stepped:
            self._stepped = True
            if rest := self.hold.unclaimed():
                what = f"{len(rest)} pruned weights, such as {rest[0].name}, are in no optimizer given to init_optimizer_for_pruning"
                self.say(1, f"Warning: {what}; they are zeroed when another one steps")

    def adopt(self) -> None:
        """Hold the zeros of weights that have the pattern already, though no masks in force say so: those of a loaded state_dict."""
        self._settled = True
        found, strange = look(self.places, self.masks, self.calculate)
        if found:
            dense = {place.name: torch.ones_like(place.parameter, dtype=torch.bool) for place in self.places}
            pruned = {name: values for name, values in self.pruned.items() if name not in found}
            self._put_in_force(dense | self.masks | found, pruned, dense.keys() - pruned.keys())
            rest = [name for name, mask in self.masks.items() if mask.all()]
            others = f"; dense stay {len(rest)}, such as {rest[0]}" if rest else ""
            self.say(1, f"{len(found)} of {len(self.places)} weights are pruned already: masks adopted from their zeros{others}")
        if strange:
            what = f"{len(strange)} weights, such as {strange[0]}, are not zero where their masks prune; the next step prunes them"
            self.say(1, f"Warning: in the loaded state_dict {what}. Load it before compute_sparse_masks.")

    def _put_in_force(self, masks: dict[str, Tensor], pruned: dict[str, Tensor], adopted: Set[str] = frozenset()) -> None:
        self.hold.masks, self.pruned, self._adopted, self._settled = masks, pruned, adopted, True
        self.hold.everything()

    def state_dict(self) -> dict[str, Any]:
        """Masks and pruned values, by layer::parameter. model.state_dict() has the masks with masks_in_state_dict=True alone."""
        return {"masks": dict(self.masks) if self.is_sparsity_enabled() else {}, "pruned": dict(self.pruned)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved masks, without permuting: load the weights they belong to first. Raises UserError if they do not fit."""
        shapes = {place.name: place.parameter.shape for place in self.places}
        masks, pruned = state["masks"], state["pruned"]
        if masks and {name: mask.shape for name, mask in masks.items()} != shapes:
            strange = next(name for name in (*masks, *shapes) if name not in masks or masks[name].shape != shapes.get(name))
            raise UserError(
                f"ASP.load_state_dict: the masks do not fit this model at {strange}. Initialise it as the one they were saved from."
            )
        self._put_in_force({name: mask.bool() for name, mask in masks.items()}, dict(pruned))
        self._settled = bool(masks)

    def detach(self) -> None:
        """Let the optimizers go; the weights stay as they are."""
        self.hold.detach()

    def __deepcopy__(self, memo: dict) -> None:
        return None  # a copy of the model is a plain model

    def __reduce__(self) -> tuple:
        return type(None), ()  # and so is a pickled one
