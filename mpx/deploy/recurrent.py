"""Give nn.LSTM layers for its input projections, which other kernels can serve. cuDNN computes them and the recurrence in one call.

Without cuDNN the recurrence takes longer: each step is a product and a kernel for the gates. So only measuring tells whether it pays.
"""

import copy
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from mpx.deploy.attention import linear_of
from mpx.deploy.fold import same_outputs
from mpx.private.torch_kernels import lstm_cell
from mpx.sparsity.kernels import has_projections


class Lstm(nn.Module):
    """Computes what `plain` does, with its parameters. The layer of an input projection has the name of its weight, as weight_ih_l0."""

    def __init__(self, plain: nn.LSTM):
        super().__init__()
        self.batch_first, self.dropout, self.hidden_size = plain.batch_first, plain.dropout, plain.hidden_size
        ways = ("", "_reverse") if plain.bidirectional else ("",)
        self.names = [[f"l{number}{way}" for way in ways] for number in range(plain.num_layers)]
        for name in chain(*self.names):
            given, kept = (getattr(plain, f"bias_{side}_{name}") if plain.bias else None for side in ("ih", "hh"))
            self.add_module(f"weight_ih_{name}", linear_of(getattr(plain, f"weight_ih_{name}"), given))
            self.register_parameter(f"weight_hh_{name}", getattr(plain, f"weight_hh_{name}"))
            self.register_parameter(f"bias_hh_{name}", kept)
        self.train(plain.training)

    def leave_cudnns_memory(self) -> None:
        """Copy what cuDNN keeps in one piece of memory with the replaced weights: the parameters, and the biases of products."""
        pieces = {parameter.untyped_storage().data_ptr() for parameter in self.parameters(recurse=False)}

        def within(tensor: Tensor) -> bool:
            return tensor.untyped_storage().data_ptr() in pieces

        for layer in self.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                if within(parameter):
                    setattr(layer, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
            for name, buffer in list(layer.named_buffers(recurse=False)):
                if within(buffer):
                    setattr(layer, name, buffer.clone())

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x: [B, T, in] or, without batch_first, [T, B, in]. hx, and the last states: [layers · directions, B, hidden] each."""
        if x.dim() != 3:
            raise TypeError(f"the input of an LSTM has 3 dimensions here, not {x.dim()}")
        x = x.transpose(0, 1) if self.batch_first else x
        zeros = x.new_zeros(sum(map(len, self.names)), x.shape[1], self.hidden_size)
        hidden, cell = (zeros, zeros) if hx is None else hx
        last: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.names):
            if number:
                x = dropout(x, self.dropout, self.training)
            outputs = []
            for name in layer:
                first, backwards = len(last), name.endswith("_reverse")
                out, end = recurrence(
                    getattr(self, f"weight_ih_{name}")(x),
                    getattr(self, f"weight_hh_{name}"),
                    getattr(self, f"bias_hh_{name}"),
                    hidden[first],
                    cell[first],
                    backwards,
                )
                outputs.append(out)
                last.append((out[0 if backwards else -1], end))
            x = torch.cat(outputs, -1)
        states = tuple(map(torch.stack, zip(*last, strict=True)))
        return x.transpose(0, 1) if self.batch_first else x, states


def recurrence(projected: Tensor, weight: Tensor, bias: Tensor | None, hidden: Tensor, cell: Tensor, backwards: bool) -> list[Tensor]:
    """[outputs of all steps [T, B, hidden], the last cell]. projected: [T, B, 4 · hidden], of the inputs."""
    steps = _steps if torch.compiler.is_compiling() else _steps_one_by_one
    return steps(projected, weight, bias, hidden, cell, backwards)


def _steps_one_by_one(
    projected: Tensor, weight: Tensor, bias: Tensor | None, hidden: Tensor, cell: Tensor, backwards: bool
) -> list[Tensor]:
    found = []
    for step in reversed(projected) if backwards else projected:
        hidden, cell = lstm_cell(step, linear(hidden, weight, bias), cell)
        found.append(hidden)
    return [torch.stack(found[::-1] if backwards else found), cell]


@torch.library.custom_op("mpx::lstm_steps", mutates_args=())
def _steps(projected: Tensor, weight: Tensor, bias: Tensor | None, hidden: Tensor, cell: Tensor, backwards: bool) -> list[Tensor]:
    """A custom operation, so that torch.compile does not compile each step."""
    return _steps_one_by_one(projected, weight, bias, hidden, cell, backwards)


@_steps.register_fake
def _(projected: Tensor, weight: Tensor, bias: Tensor | None, hidden: Tensor, cell: Tensor, backwards: bool) -> list[Tensor]:
    return [projected.new_empty(*projected.shape[:2], weight.shape[1]), torch.empty_like(cell)]


def apart(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """`model`, or if an nn.LSTM has a projection of these names, a copy with an Lstm in its place. All parameters are shared."""
    owners = {name.rpartition(".")[0] for name in names}
    plain = [owner for owner in sorted(owners) if isinstance(model.get_submodule(owner), nn.LSTM)]
    if not plain:
        return model
    copied = copy.deepcopy(model, {id(value): value for value in (*model.parameters(), *model.buffers())})
    for owner in plain:
        copied.set_submodule(owner, Lstm(copied.get_submodule(owner)))
    return copied


@torch.no_grad()
def projections(model: nn.Module, x: Tensor) -> list[str]:
    """Names of the weights of input projections that can be layers; none if the model then computes otherwise.

    model: in evaluation mode, in FP32. x: a batch.
    """
    names = [
        f"{name}.{weight}"
        for name, layer in model.named_modules()
        if name and has_projections(layer)
        for weight, _ in layer.named_parameters()
        if weight.startswith("weight_ih_")
    ]
    try:
        return names if names and same_outputs(apart(model, names), model, x) else []
    except (AttributeError, TypeError):  # the LSTM gets packed sequences, or one without a batch
        return []
