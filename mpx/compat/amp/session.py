"""The decisions of one call of amp.initialize."""

from dataclasses import dataclass, field

import torch

from mpx.compat.amp.casts import Handle
from mpx.compat.amp.properties import Properties
from mpx.compat.amp.scaler import LossScaler
from mpx.errors import UserError


@dataclass
class Session:
    """One call of amp.initialize: its properties and one loss scaler for each of its losses."""

    properties: Properties
    loss_scalers: list[LossScaler] = field(default_factory=list)
    handle: Handle | None = None  # controls the casts of patch_torch_functions

    @property
    def casts_operations(self) -> bool:
        return self.handle is not None and self.handle.on

    @property
    def multiplies_in_fp16(self) -> bool:
        return self.casts_operations or self.properties.cast_model_type == torch.float16

    @property
    def leaves_gradients_alone(self) -> bool:
        """Whether gradients are neither scaled nor copied to master weights, so that a backward pass needs no further work."""
        return not self.properties.master_weights and self.properties.loss_scale == 1.0

    def scaler(self, loss_id: int) -> LossScaler:
        if not 0 <= loss_id < len(self.loss_scalers):
            last = len(self.loss_scalers) - 1
            raise UserError(f"amp.scale_loss(loss_id={loss_id}): allowed is 0 to {last}; amp.initialize(num_losses=…) makes more.")
        return self.loss_scalers[loss_id]
