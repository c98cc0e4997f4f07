"""The mode and the loss scale of a precision plugin, mpx's own or one of Lightning's."""

import torch
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor

from mpx.errors import UserError
from mpx.precision.modes import MODES, Mode
from mpx.precision.plugin import ModePrecision

OF_LIGHTNING = {  # Trainer(precision=…) -> the mode of the same arithmetic
    "32-true": "fp32", "16-mixed": "amp", "bf16-mixed": "amp_bf16", "16-true": "fp16_true", "bf16-true": "bf16_true",
}  # fmt: skip


def mode_of(plugin: Precision) -> Mode:
    """The plugin's mode. Raises UserError if its arithmetic is that of none of mpx's modes."""
    if isinstance(plugin, ModePrecision):
        return plugin.mode
    if plugin.precision not in OF_LIGHTNING:
        raise UserError(
            f"Trainer(precision={plugin.precision!r}) is not a mode of mpx. Use {', '.join(OF_LIGHTNING)}, or plugins=mpx.Precision(MODE)."
        )
    return MODES[OF_LIGHTNING[plugin.precision]]


def scale_of(plugin: Precision) -> Tensor | None:
    """The current loss scale; None in a mode without one."""
    if isinstance(plugin, ModePrecision):
        return None if plugin.loss_scale is None else plugin.loss_scale.scale
    scaler = getattr(plugin, "scaler", None)
    return None if scaler is None else torch.tensor(scaler.get_scale())
