"""Apply an order of channels to parameters, buffers, gradients and optimizer state, and undo it if the model
then computes something else.

The model runs before and after, in both modes. Its outputs must stay the same. Outputs of inner modules are
the same values in another order, so their norms must stay the same, too. The norms are the stricter test,
since an error deep in a network may hardly change its outputs.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpx.private.torch_dispatch import tree_leaves
from mpx.sparsity.permutation.channels import Axis, Group
from mpx.sparsity.permutation.trace import Call, training

Results = list[tuple[Tensor, float]]  # values, and the relative change that rounding alone may make


@dataclass
class Permutation:
    """An order of channels: for each axis that changes, the old position of each new one. new[i] =
    old[index[i]]
    """

    indices: dict[Axis, Tensor] = field(default_factory=dict)  # int64 [size] on the CPU

    def add(self, group: Group, order: np.ndarray, sizes: Mapping[Axis, int]) -> None:
        """Give channel i the values of channel order[i], wherever they occur. Groups do not overlap, so their
        orders combine.
        """
        if (order == np.arange(len(order))).all():
            return
        for axis, places in group.items():
            index = self.indices.setdefault(axis, torch.arange(sizes[axis]))
            index[torch.from_numpy(places.reshape(-1))] = torch.from_numpy(places[order].reshape(-1))

    def inverse(self) -> "Permutation":
        return Permutation({axis: index.argsort() for axis, index in self.indices.items()})

    @torch.no_grad()
    def apply(self, tensors: Mapping[str, Tensor]) -> None:
        """Reorder tensors in place, by name: a state_dict, or moving averages with its names and shapes.
        Other names are ignored.
        """
        for axis, index in self.indices.items():
            tensor = tensors.get(axis.name)
            if tensor is not None:
                block = tensor if axis.rows is None else tensor[slice(*axis.rows)]
                block.copy_(block.index_select(axis.dim, index.to(tensor.device)))

    def moves(self, name: str, dim: int) -> bool:
        return any(axis.name == name and axis.dim == dim for axis in self.indices)


def apply_everywhere(
    permutation: Permutation, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> None:
    """Reorder the model's parameters and buffers with their gradients and their optimizer state."""
    tensors = model.state_dict(keep_vars=True)
    permutation.apply(tensors)
    for name, tensor in tensors.items():
        if tensor.grad is not None:
            permutation.apply({name: tensor.grad})
        for optimizer in optimizers:
            for _, value in _values(optimizer.state.get(tensor, {})):
                permutation.apply({name: value})


def stays_behind(parameters: Mapping[str, Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> str | None:
    """A sentence about the first optimizer state that `apply_everywhere` cannot reorder; None if it can
    reorder all. parameters: by name.
    """
    for optimizer in optimizers:
        for name, parameter in parameters.items():
            for key, value in _values(optimizer.state.get(parameter, {})):
                if value.shape != parameter.shape:
                    return (
                        f"{type(optimizer).__name__}'s state {key!r} of {name}, of shape "
                        f"{tuple(value.shape)}, cannot move along"
                    )
    return None


def _values(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """(key, tensor) for the tensors of one parameter's state, including those in lists, without single
    values.
    """
    for key, value in state.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Tensor) and one.numel() > 1:
                yield key, one


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
