"""Apply a permutation, and undo it if the model then computes something else. The model runs before and
after, in both modes.

The model's outputs must stay the same. Outputs of inner modules are the same values in another order, so
their norms must stay the same, too. The norms are the stricter test, since an error deep in a network may
hardly change its outputs.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from mpx.private.torch_dispatch import tree_leaves
from mpx.sparsity.permutation.apply import Permutation, apply_everywhere
from mpx.sparsity.permutation.trace import Call, training

Results = list[tuple[Tensor, float]]  # values, and the relative change that rounding alone may make


def apply_checked(
    permutation: Permutation, model: nn.Module, ways: list[Call], optimizers: list[torch.optim.Optimizer]
) -> str | None:
    """Apply it. If the results change, restore everything and return the reason. model: in evaluation
    mode.
    """
    devices = list({tensor.device for tensor in model.parameters() if tensor.is_cuda})
    with torch.random.fork_rng(devices):
        for device in devices or [torch.device("cpu")]:
            # random values then differ from those of the two passes below, which are equal
            torch.rand(1, device=device)
        first = _in_both_modes(model, ways)
    with torch.random.fork_rng(devices):
        before = _in_both_modes(model, ways)
    apply_everywhere(permutation, model, optimizers)
    with torch.random.fork_rng(devices):
        after = _in_both_modes(model, ways)
    for (one, _), (wanted, tolerance), (got, _) in zip(first, before, after, strict=True):
        scale, error, noise = wanted.abs().max(), (wanted - got).abs().max(), (wanted - one).abs().max()
        # otherwise it is random, such as functional dropout in training
        steady = bool(noise <= tolerance * scale)
        if steady and not error <= tolerance * scale:  # NaN counts as a change
            apply_everywhere(permutation.inverse(), model, optimizers)
            return (
                f"what the model computes changed by {float(error / scale):.1e} of its size, so "
                "everything was put back"
            )
    return None


def _in_both_modes(model: nn.Module, ways: list[Call]) -> Results:
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    found = _results(model, ways)
    with training(model) as woken:
        found += _results(model, ways) if woken else []
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return found


@torch.no_grad()
def _results(model: nn.Module, ways: list[Call]) -> Results:
    """The outputs of the model, and the norms of the outputs of its modules."""
    found: Results = []

    def measure(module: nn.Module, given: tuple, result: Any) -> None:
        found.extend(
            (torch.linalg.vector_norm(one, dtype=torch.float64), _tolerance(one)) for one in _floats(result)
        )

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(measure))
        found += [(one, _tolerance(one)) for one in _floats([call(model) for call in ways])]
    return found


def _floats(values: Any) -> list[Tensor]:
    return [
        one
        for one in tree_leaves(values)
        if isinstance(one, Tensor) and one.is_floating_point() and one.numel()
    ]


def _tolerance(output: Tensor) -> float:
    """Another order of summation only changes rounding. GPUs may round operands of convolutions to TF32 or
    less.
    """
    return 1e-3 if output.device.type == "cpu" and output.dtype in (torch.float32, torch.float64) else 3e-2
