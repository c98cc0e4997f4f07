"""The optimization levels O0 to O3, and checks of their overrides.

Source of levels, defaults and rules: NVIDIA apex 25.05, apex/amp/frontend.py.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from mpx.errors import UserError


@dataclass(frozen=True)
class Properties:
    """The properties of one level. None means that a property does not apply to the level."""

    opt_level: str
    brief: str
    cast_model_type: torch.dtype | bool | None  # type of the model's weights, buffers and inputs; False: unchanged
    patch_torch_functions: bool  # cast around operations inside the model's forward
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None  # FP32 weights inside the optimizer, beside the model's FP16 ones
    loss_scale: str | float  # "dynamic" or a fixed number
    enabled: bool = True


LEVELS = {
    level.opt_level: level
    for level in (
        Properties("O0", "FP32 training", torch.float32, False, None, False, 1.0),
        Properties("O1", "FP32 weights, casts around operations", None, True, None, None, "dynamic"),
        Properties("O2", "FP16 weights with FP32 master weights and FP32 batch norm", torch.float16, False, True, True, "dynamic"),
        Properties("O3", "FP16 training", torch.float16, False, False, False, 1.0),
    )
}
OFF = replace(LEVELS["O0"], brief="off", cast_model_type=None, enabled=False)


def resolve(opt_level: Any, refuse: Callable[[str], None], **overrides: Any) -> Properties:
    """The level's properties with the overrides that are not None. Raises UserError for invalid values.

    refuse: called with a message for conflicting overrides. If it does not raise, the overrides are used anyway.
    """
    if opt_level not in LEVELS:
        raise wrong("opt_level", opt_level, "'O0', 'O1', 'O2' or 'O3' (the letter O, not the digit 0)")
    given = {name: READERS[name](value) for name, value in overrides.items() if value is not None}
    for conflict in _conflicts(opt_level, given):
        refuse(str(conflict))
    return replace(LEVELS[opt_level], **given)


def _conflicts(opt_level: str, given: dict[str, Any]) -> Iterator[UserError]:
    """O1 keeps FP32 weights, so properties of FP16 weights conflict with it. The other levels do not cast around operations."""
    if opt_level != "O1":
        if given.get("patch_torch_functions"):
            yield wrong("patch_torch_functions", True, f"False with opt_level='{opt_level}': casts around operations are what 'O1' does")
        return
    if given.get("cast_model_type") == torch.float16:
        yield wrong("cast_model_type", torch.float16, "torch.float32 or False with opt_level='O1'; 'O2' and 'O3' have FP16 weights")
    for name in ("keep_batchnorm_fp32", "master_weights"):
        if name in given:
            yield wrong(name, given[name], "nothing with opt_level='O1', whose weights stay FP32; leave it out or use 'O2'")


def check_scaling(num_losses: Any, min_loss_scale: Any, max_loss_scale: Any) -> None:
    """num_losses: at least 1. The two scales: numbers above 0, or None for no limit."""
    if not isinstance(num_losses, int) or num_losses < 1:
        raise wrong("num_losses", num_losses, "a whole number from 1, one loss scale for each")
    for name, value in (("min_loss_scale", min_loss_scale), ("max_loss_scale", max_loss_scale)):
        if value is not None and not _positive(value):
            raise wrong(name, value, "a number above 0, or None for no limit")
    if min_loss_scale is not None and max_loss_scale is not None and min_loss_scale > max_loss_scale:
        raise wrong("min_loss_scale", min_loss_scale, f"at most max_loss_scale={max_loss_scale:g}")


def wrong(name: str, value: Any, allowed: str) -> UserError:
    return UserError(f"amp.initialize({name}={value!r}): allowed is {allowed}.")


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _cast_model_type(value: Any) -> torch.dtype | bool:
    if value is not False and value not in (torch.float32, torch.float16):
        raise wrong("cast_model_type", value, "torch.float16, torch.float32 or False")
    return value


def _switch(name: str, value: Any) -> bool:
    if value not in (True, False, "True", "False"):
        raise wrong(name, value, "True or False")
    return value in (True, "True")


def _loss_scale(value: Any) -> str | float:
    if value == "dynamic":
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not _positive(number):
        raise wrong("loss_scale", value, "'dynamic' or a number above 0")
    return number


READERS = {
    "cast_model_type": _cast_model_type,
    "patch_torch_functions": lambda value: _switch("patch_torch_functions", value),
    "keep_batchnorm_fp32": lambda value: _switch("keep_batchnorm_fp32", value),
    "master_weights": lambda value: _switch("master_weights", value),
    "loss_scale": _loss_scale,
}
