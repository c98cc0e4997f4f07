"""Does a training step do something in Python that a replay of its kernels would not repeat?"""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpx.private.torch_modules import buffers


class Repeatable:
    """A context around one step. Afterwards `reason` says what the step did besides launching kernels; None: nothing was seen.

    It sees random numbers that are drawn on the CPU (stochastic depth, layer drop) and attributes of the model's modules that change, such
    as counters, and tensors that are replaced instead of written to. A step that waits for the device fails in the recording itself.
    """

    def __init__(self, model: nn.Module):
        self.model, self.reason = model, None

    def __enter__(self) -> "Repeatable":
        self._before = _draws(), _attributes(self.model)
        return self

    def __exit__(self, *raised: Any) -> None:
        draws, attributes = self._before
        if any(not np.array_equal(a, b) for a, b in zip(draws, _draws(), strict=True)):
            self.reason = "the model draws random numbers on the CPU"
        elif changed := [name for name, value in _attributes(self.model).items() if attributes.get(name) != value]:
            self.reason = f"the model changes its own attribute {changed[0]} in Python"


def _draws() -> list[np.ndarray]:
    numpy_state = np.random.get_state()
    return [torch.get_rng_state().numpy(), np.array(random.getstate()[1]), np.append(numpy_state[1], numpy_state[2])]


def _attributes(model: nn.Module) -> dict[str, Any]:
    """The attributes of all modules: plain values by their text, by which NaN equals NaN, and tensors by identity and address."""
    found = {}
    for name, module in model.named_modules():
        for key, value in (vars(module) | buffers(module)).items():
            if isinstance(value, Tensor):
                found[f"{name}.{key}"] = (id(value), value.data_ptr())
            elif value is None or isinstance(value, (bool, int, float, str)):
                found[f"{name}.{key}"] = repr(value)
    return found
