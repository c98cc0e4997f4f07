"""The optimization levels O0 to O3, and checks of their overrides.

Source of levels, defaults and rules: NVIDIA apex 25.05, apex/amp/frontend.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from mpx.errors import UserError


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
