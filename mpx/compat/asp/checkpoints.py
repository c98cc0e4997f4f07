"""Masks in a model's state_dict: read and write apex's mask buffers, and infer masks from plain weights."""

from typing import Any

import torch
from torch import Tensor, nn

from mpx.compat.asp.eligible import Place

PRUNING = "_mpx_asp"  # attribute of a model for its Pruning, which no state_dict contains


def join_state_dict(model: nn.Module) -> None:
    """Make model.load_state_dict accept apex's checkpoints, strictly, as well as plain ones, and apply the masks of both.

    model.state_dict() has apex's buffers if the model was initialised with masks_in_state_dict=True.
    """
    model.register_load_state_dict_pre_hook(_take_masks)
    model.register_load_state_dict_post_hook(_adopt)
    model.register_state_dict_post_hook(_write_masks)


def _take_masks(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    if (pruning := module.__dict__.get(PRUNING)) is not None:
        masks, pruned = take(state_dict, prefix, pruning.places)
        if any(not mask.all() for mask in masks.values()):  # apex's masks are all ones until they are computed
            pruning.load_state_dict({"masks": masks, "pruned": pruned})


def _adopt(module: nn.Module, _: Any) -> None:
    if (pruning := module.__dict__.get(PRUNING)) is not None:
        pruning.adopt()


def _write_masks(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    if (pruning := module.__dict__.get(PRUNING)) is None or not pruning.masks_in_state_dict:
        return
    for place in pruning.places:
        dense = torch.ones_like(place.parameter, dtype=torch.bool)
        state_dict[_stem(place, prefix) + "mask"] = pruning.masks.get(place.name, dense)
        if pruning.recompute:
            none = torch.zeros_like(place.parameter, device="cpu", requires_grad=False)
            state_dict[_stem(place, prefix) + "pruned_p"] = pruning.pruned.get(place.name, none)


def take(state_dict: dict[str, Any], prefix: str, places: list[Place]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Remove apex's buffers from the state_dict; returns (masks, pruned values) by layer::parameter."""
    masks, pruned = {}, {}
    for place in places:
        if (mask := state_dict.pop(_stem(place, prefix) + "mask", None)) is not None:
            masks[place.name] = mask.bool()
        if (values := state_dict.pop(_stem(place, prefix) + "pruned_p", None)) is not None:
            pruned[place.name] = values
    return masks, pruned


def _stem(place: Place, prefix: str) -> str:
    """The prefix of apex's buffer names of a weight: layer.__weight_mma_, followed by mask or pruned_p."""
    parameter = place.name.rpartition("::")[2].rpartition(".")[2]
    return f"{prefix}{place.layer}.__{parameter}_mma_" if place.layer else f"{prefix}__{parameter}_mma_"
