"""The precision plugin by the name of a mode: `pl.Trainer(plugins=mpx.Precision("amp"))`."""

from contextlib import ExitStack
from typing import Any

import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn

from mpx.errors import UserError, nearest
from mpx.precision import plugin
from mpx.precision.modes import MODES, emulated
from mpx.precision.switches import float32_matmuls
from mpx.settings.arguments import checked, defaults
from mpx.settings.check import check_scale


class Precision(plugin.ModePrecision):
    """Trains any LightningModule in a precision mode: `pl.Trainer(plugins=mpx.Precision("amp"))`.

    It works with automatic and manual optimization, and with any number of optimizers.

    mode: fp32, tf32, amp (FP16), amp_bf16, fp16_true, bf16_true, fp8, or apex's o0 to o3 (docs/precision.md).
    emulate: auto rounds to the format and computes in FP32 if the device lacks the format or is slow in it
    (FP16 on a CPU); always; never. loss_scale: for modes with FP16, the keys of precision.loss_scale: initial
    (65536), dynamic (True), growth_factor, backoff_factor,
        growth_interval and max_skips (in optimizer steps), floor, ceiling. fp16_true and o3 scale the loss
        only if these say so.

    While the Trainer runs, FP32 operands multiply as the mode promises; PyTorch's default is TF32 for
    convolutions and recurrent layers. A checkpoint holds the loss scale.
    Raises UserError for an unknown mode or argument and, when the Trainer starts, for a mode that does not
    suit the device or the optimizers.
    Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740.
    """

    # under which Lightning saves the state, so that a checkpoint of the command continues
    __qualname__ = "ModePrecision"

    def __init__(self, mode: str = "amp", *, emulate: str = "auto", **loss_scale: Any):
        if mode not in MODES:
            raise UserError(
                f"mpx.Precision({mode!r}): no such mode.{nearest(str(mode), MODES)} Allowed: "
                f"{', '.join(MODES)}."
            )
        if loss_scale and not MODES[mode].scaled:
            raise UserError(
                f"mpx.Precision({mode!r}) scales no loss. Leave {min(loss_scale)} out, or use "
                "mpx.Precision('amp')."
            )
        checked("precision", {"emulate": emulate}, {"emulate": "auto"}, "mpx.Precision")
        self.requested = emulate
        usual = defaults("precision", mode).get("loss_scale", {})
        scale = checked("precision.loss_scale", loss_scale, usual, "mpx.Precision")
        if scale:
            check_scale(scale, prefix="")
        self._arguments = {"loss_scale": scale, "max_skips": scale.pop("max_skips", None), "project": True}
        super().__init__(MODES[mode], torch.device("cpu"), emulate=False, **self._arguments)
        self.changes = {
            f"precision.loss_scale.{name}": value
            for name, value in loss_scale.items()
            if value != usual[name]
        }
        self._switches = ExitStack()

    def convert_module(self, module: Any) -> nn.Module:
        """Lightning calls this when it starts, and only then knows the device."""
        trainer: Any = module.trainer
        self.device = trainer.strategy.root_device
        self.emulate = emulated(self.mode, self.device, self.requested)
        # nothing is left of an earlier Trainer's run
        if trainer.state.fn == TrainerFn.FITTING and trainer.global_step == 0:
            super().__init__(self.mode, self.device, emulate=self.emulate, **self._arguments)
        self._switches.enter_context(float32_matmuls(self.mode, emulate=self.emulate))
        return super().convert_module(module)

    def teardown(self) -> None:
        self._switches.close()
        super().teardown()


# by its __qualname__, for pickle, which takes it to processes that Lightning spawns
ModePrecision = Precision
