"""Checkpoints that apex's ASP saved: their mask buffers are taken out of a state_dict on its way into an initialised model."""

from typing import Any

from torch import Tensor, nn

from mpx.compat.asp.eligible import Place

OWN = "_mpx_asp"  # attribute of a model: its Pruning. No parameter, buffer or module, so no state_dict has it


def accept_apex(model: nn.Module) -> None:
    """model.load_state_dict then takes apex's checkpoints, strictly, and their masks are in force afterwards."""
    model.register_load_state_dict_pre_hook(_adopt)


def _adopt(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    if (pruning := module.__dict__.get(OWN)) is not None:
        masks, pruned = take(state_dict, prefix, pruning.places)
        if any(not mask.all() for mask in masks.values()):  # apex's masks are all ones until they are computed
            pruning.load_state_dict({"masks": masks, "pruned": pruned})


def take(state_dict: dict[str, Any], prefix: str, places: list[Place]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Remove apex's buffers; returns (masks, pruned values) by layer::parameter. apex's names: layer.__weight_mma_mask, …_mma_pruned_p."""
    masks, pruned = {}, {}
    for place in places:
        parameter = place.name.rpartition("::")[2].rpartition(".")[2]
        stem = f"{prefix}{place.layer}.__{parameter}_mma_" if place.layer else f"{prefix}__{parameter}_mma_"
        if (mask := state_dict.pop(f"{stem}mask", None)) is not None:
            masks[place.name] = mask.bool()
        if (values := state_dict.pop(f"{stem}pruned_p", None)) is not None:
            pruned[place.name] = values
    return masks, pruned
