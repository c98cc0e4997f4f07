"""Build the precision plugin that a run's precision settings name."""

import torch
from omegaconf import DictConfig, OmegaConf

from mpx.precision.modes import MODES, emulated
from mpx.precision.plugin import ModePrecision


def build_precision(precision: DictConfig, device: torch.device, *, own: bool = False) -> ModePrecision:
    """own: for a module of the user's own. Raises UserError for a number format that this device cannot run."""
    mode = MODES[precision.mode]
    loss_scale = OmegaConf.to_container(precision.loss_scale) if mode.scaled else {}
    max_skips = loss_scale.pop("max_skips", None)
    emulate = emulated(mode, device, precision.emulate)
    every = precision.get("layers") == "all"
    return ModePrecision(mode, device, emulate=emulate, loss_scale=loss_scale, max_skips=max_skips, own=own, every_linear=every)
