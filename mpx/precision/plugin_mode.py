"""The mode and the loss scale of a precision plugin, mpx's own or one of Lightning's."""

import torch
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor

from mpx.errors import UserError
from mpx.precision.modes import MODES, Mode
from mpx.precision.plugin import ModePrecision


def mode_of(plugin: Precision) -> Mode:
    """The plugin's mode. Raises UserError if its arithmetic is that of none of mpx's modes."""
    if isinstance(plugin, ModePrecision):
        return plugin.mode
    modes = {mode.lightning: mode for mode in reversed(MODES.values())}  # the first mode of each name
    if plugin.precision not in modes:
        raise UserError(
            f"Trainer(precision={plugin.precision!r}) is not a mode of mpx. Use {', '.join(modes)}, "
            "or plugins=mpx.Precision(MODE)."
        )
    return modes[plugin.precision]


def scale_of(plugin: Precision) -> Tensor | None:
    """The current loss scale; None in a mode without one."""
    if isinstance(plugin, ModePrecision):
        return None if plugin.loss_scale is None else plugin.loss_scale.scale
    scaler = getattr(plugin, "scaler", None)
    return None if scaler is None else torch.tensor(scaler.get_scale())
