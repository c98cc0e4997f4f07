"""apex's lists of functions by type. Using them is an error, since torch.autocast, which sets O1's types, has its lists in compiled code.

Source of the names: NVIDIA apex 25.05, apex/amp/lists.
"""

from typing import Any

from mpx.errors import UserError


def __getattr__(name: str) -> Any:
    if name in ("functional_overrides", "tensor_overrides", "torch_overrides"):
        raise UserError(
            f"amp.lists.{name} is refused: O1 takes its types from torch.autocast, whose lists a script cannot change; "
            f"for FP32 use amp.register_float_function(module, 'name'), for FP16 amp.disable_casts and .half()."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
