"""What amp.initialize decided: a level with its overrides, and loss scales, based on mpx's device-side
LossScale.

Source of levels, defaults, rules and names: NVIDIA apex 25.05, apex/amp/frontend.py, _amp_state.py and
scaler.py.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp.casts import Handle
from mpx.errors import UserError
from mpx.precision.scaling import LossScale
from mpx.system.processes import rank_and_world


@dataclass(frozen=True)
class Properties:
    """The properties of one level. None means that a property does not apply to the level."""

    opt_level: str
    brief: str
    # type of the model's weights, buffers and inputs; False: unchanged
    cast_model_type: torch.dtype | bool | None
    patch_torch_functions: bool  # cast around operations inside the model's forward
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None  # FP32 weights inside the optimizer, beside the model's FP16 ones
    loss_scale: str | float  # "dynamic" or a fixed number
    enabled: bool = True

    @property
    def dtype(self) -> torch.dtype | None:
        """The type to which weights, buffers and inputs are cast."""
        return self.cast_model_type if isinstance(self.cast_model_type, torch.dtype) else None


LEVELS = {
    level.opt_level: level
    for level in (
        Properties("O0", "FP32 training", torch.float32, False, None, False, 1.0),
        Properties("O1", "FP32 weights, casts around operations", None, True, None, None, "dynamic"),
        Properties(
            "O2",
            "FP16 weights with FP32 master weights and batch norm",
            torch.float16,
            False,
            True,
            True,
            "dynamic",
        ),
        Properties("O3", "FP16 training", torch.float16, False, False, False, 1.0),
    )
}
OFF = replace(LEVELS["O0"], brief="off", cast_model_type=None, enabled=False)
OF_FP16_WEIGHTS = ("keep_batchnorm_fp32", "master_weights")


def resolve(opt_level: Any, overrides: dict[str, Any]) -> Properties:
    """The level's properties with the overrides that are not None. Raises UserError for invalid or
    conflicting ones.
    """
    if opt_level not in LEVELS:
        raise wrong("opt_level", opt_level, "'O0', 'O1', 'O2' or 'O3' (the letter O, not the digit 0)")
    given = {name: _read(name, value) for name, value in overrides.items() if value is not None}
    if opt_level != "O1" and given.get("patch_torch_functions"):
        raise wrong(
            "patch_torch_functions",
            True,
            f"False with {opt_level}: casts around operations are what 'O1' does",
        )
    if opt_level == "O1":
        if given.get("cast_model_type") == torch.float16:
            raise wrong(
                "cast_model_type",
                torch.float16,
                "torch.float32 or False with O1; O2 and O3 have FP16 weights",
            )
        for name in OF_FP16_WEIGHTS:
            if name in given:
                raise wrong(
                    name, given[name], "nothing with O1, whose weights stay FP32; leave it out or use O2"
                )
    return replace(LEVELS[opt_level], **given)


def _read(name: str, value: Any) -> Any:
    if name == "loss_scale":
        return value if value == "dynamic" else positive(name, value, "'dynamic' or a number above 0")
    if name == "cast_model_type":
        if value is not False and value not in (torch.float32, torch.float16):
            raise wrong(name, value, "torch.float16, torch.float32 or False")
        return value
    if value not in (True, False, "True", "False"):
        raise wrong(name, value, "True or False")
    return value in (True, "True")


def positive(name: str, value: Any, allowed: str = "a number above 0, or None") -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise wrong(name, value, allowed)
    return number


def wrong(name: str, value: Any, allowed: str) -> UserError:
    return UserError(f"amp.initialize({name}={value!r}): allowed is {allowed}.")


class LossScaler:
    """A loss scale as scripts for apex use it: `amp._amp_state.loss_scalers[0].loss_scale()`.

    loss_scale: "dynamic" starts at 2^16 (within the limits), doubles after 2000 clean passes in a row and
    halves after an overflow. A number stays fixed, and overflows are not checked. device: that of the
    gradients.
    """

    def __init__(
        self, loss_scale: str | float, device: torch.device, smallest: float | None, largest: float | None
    ):
        self.dynamic = loss_scale == "dynamic"
        floor, ceiling = smallest or 0.0, largest or math.inf
        initial = max(floor, min(2.0**16, ceiling)) if self.dynamic else float(loss_scale)
        self.scale = LossScale(device, initial=initial, floor=floor, ceiling=ceiling, dynamic=self.dynamic)

    def loss_scale(self) -> float:
        return self.scale.scale.item()

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self.scale.scale.fill_(value)

    def end_pass(self) -> Tensor:
        """Adjust the scale to the overflows since the last pass. Returns the overflow flag (0 or 1, on the
        device).
        """
        overflowed = self.scale.found_inf.clone()
        self.scale.update()
        if not self.dynamic:
            self.scale.clean += 1  # apex counts clean passes for a fixed scale too
        return overflowed

    def state_dict(self) -> dict[str, float | int]:
        return {"loss_scale": self.loss_scale(), "unskipped": int(self.scale.clean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A fixed scale's count may exceed 2000, after which a dynamic scale would never grow, so it is
        capped.
        """
        self._loss_scale = state["loss_scale"]
        most = self.scale.growth_interval - 1 if self.dynamic else math.inf
        self.scale.clean.fill_(min(state["unskipped"], most))


@dataclass
class Session:
    """One call of amp.initialize: its properties and one loss scaler for each of its losses."""

    properties: Properties
    loss_scalers: list[LossScaler] = field(default_factory=list)
    handle: Handle | None = None  # controls the casts of patch_torch_functions
    verbosity: int = 1

    @property
    def casts_operations(self) -> bool:
        return self.handle is not None and self.handle.on

    @property
    def leaves_gradients_alone(self) -> bool:
        """Whether gradients are neither scaled nor copied to master weights."""
        return not self.properties.master_weights and self.properties.loss_scale == 1.0

    def scaler(self, loss_id: int) -> LossScaler:
        if not 0 <= loss_id < len(self.loss_scalers):
            last = len(self.loss_scalers) - 1
            raise UserError(
                f"amp.scale_loss(loss_id={loss_id}): allowed is 0 to {last}; amp.initialize(num_losses=…) "
                "makes more."
            )
        return self.loss_scalers[loss_id]

    def say(self, text: str) -> None:
        """Print in the first process unless verbosity is 0."""
        if self.verbosity > 0 and rank_and_world()[0] == 0:
            print(text)


class AmpState:
    """`amp._amp_state`: the newest amp.initialize of this process. Holds no model and no optimizer.

    allow_incoming_model_not_fp32: accept models with FP16 weights. handle: that of the newest O1 or amp.init.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.handle = Handle()
        self.allow_incoming_model_not_fp32 = False

    def get(self, caller: str) -> Session:
        if self.session is None:
            raise UserError(
                f"{caller} before amp.initialize: call model, optimizer = amp.initialize(model, optimizer) "
                "first."
            )
        return self.session

    @property
    def loss_scalers(self) -> list[LossScaler]:
        return self.get("amp._amp_state.loss_scalers").loss_scalers

    @property
    def opt_properties(self) -> Properties:
        return self.get("amp._amp_state.opt_properties").properties


_amp_state = AmpState()


def master_params(optimizer: Any) -> Iterator[Tensor]:
    """The parameters that the optimizer steps: FP32 master weights if there are any. Clip these after
    scale_loss.
    """
    for group in optimizer.param_groups:
        yield from group["params"]
