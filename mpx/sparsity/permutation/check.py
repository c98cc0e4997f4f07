"""Applying a permutation only if the model still computes the same: its outputs are compared before and after, in both modes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mpx.sparsity.permutation.apply import Permutation, apply_everywhere
from mpx.sparsity.permutation.trace import Call, training


def apply_checked(permutation: Permutation, model: nn.Module, ways: list[Call], optimizers: list[torch.optim.Optimizer]) -> str | None:
    """Apply it; put everything back and return the reason if the model's outputs change. model: in evaluation mode."""
    with _as_it_was(model):
        evaluated, first, trained = _outputs(model, ways), _training_outputs(model, ways), _training_outputs(model, ways)
    apply_everywhere(permutation, model, optimizers)
    with _as_it_was(model):
        pairs = list(zip(evaluated, _outputs(model, ways), strict=True))
        triples = zip(first, trained, _training_outputs(model, ways), strict=True)
    pairs += [(wanted, got) for one, wanted, got in triples if torch.equal(one, wanted)]  # the others are random in training
    for wanted, got in pairs:
        scale, error = wanted.abs().max(), (wanted - got).abs().max()
        if not error <= _tolerance(wanted) * scale:  # NaN counts as a change
            apply_everywhere(permutation.inverse(), model, optimizers)
            return f"the outputs changed by {float(error / scale):.1e} of their size, so everything was put back"
    return None


@torch.no_grad()
def _outputs(model: nn.Module, ways: list[Call]) -> list[Tensor]:
    found = tree_leaves([call(model) for call in ways])
    return [one for one in found if isinstance(one, Tensor) and one.is_floating_point() and one.numel()]


def _training_outputs(model: nn.Module, ways: list[Call]) -> list[Tensor]:
    with training(model) as woken:
        return _outputs(model, ways) if woken else []


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards buffers hold what they held, and random numbers go on where they were."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = list({tensor.device for tensor in model.parameters() if tensor.is_cuda})
    with torch.random.fork_rng(devices):
        yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)


def _tolerance(output: Tensor) -> float:
    """Another order of summation costs rounding only; devices may round operands of convolutions to TF32 or less."""
    return 1e-3 if output.device.type == "cpu" and output.dtype in (torch.float32, torch.float64) else 3e-2
