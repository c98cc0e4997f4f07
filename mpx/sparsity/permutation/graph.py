"""The walk: torch.export's graphs of a model, operation by operation, give the channels that may change places.

    groups, reasons = find_groups(model, calls(example_input))

An operation without a rule pins whatever channels reach it, so an unknown one costs gain, never correctness.
"""

from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from mpx.sparsity.permutation.aliases import Aliases
from mpx.sparsity.permutation.channels import Axis, Group
from mpx.sparsity.permutation.frames import open_modules, within
from mpx.sparsity.permutation.operations import described, filled, name_of, result, tensors_in
from mpx.sparsity.permutation.rules_shape import COPIES
from mpx.sparsity.permutation.trace import Call, trace
from mpx.sparsity.permutation.walk import Parameter, Walk


def find_groups(model: nn.Module, ways: list[Call], *, exhaustive: bool = False) -> tuple[list[Group], dict[Axis, list[str | None]]]:
    """Groups of exchangeable channels, and per axis and position the reason why it stays (None: it can move).

    The facts of all calls in both modes are united. What they leave open holds its channels (frames.py), unless they are exhaustive.
    model: in evaluation mode. Raises CannotTrace.
    """
    programs = trace(model, ways)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    used = {id(tensors[name]) for program in programs for name in _used(program)}
    held = {} if exhaustive else open_modules(model, ways, used)
    walk = Walk()
    for program in {_form(one): one for one in (trace(model, ways, marked=True) if held else programs)}.values():
        _follow(walk, program, model, held)
    return walk.channels.solve()


def _used(program: ExportedProgram) -> list[str]:
    """Names of the parameters and buffers that an operation takes."""
    signature = program.graph_signature
    targets = dict(signature.inputs_to_parameters) | dict(signature.inputs_to_buffers)
    return [targets[node.name] for node in program.graph.nodes if node.name in targets and node.users]


def _form(program: ExportedProgram) -> tuple:
    """Equal for two graphs that have the same facts; whether dropout drops is none."""
    shown = [(node.target, node.args[:1] if name_of(node) in COPIES else node.args, node.kwargs) for node in program.graph.nodes]
    return tuple(map(str, shown))


def _follow(walk: Walk, program: ExportedProgram, model: nn.Module, held: dict[str, str]) -> None:
    values = _placeholders(walk, program, model)
    aliases = Aliases(walk)
    for node in program.graph.nodes:
        if node.op == "call_function":
            walk.operation = described(node)
            values[node] = result(walk, node, values)
            aliases.follow(node, values)
            for path in within(node) if held else ():
                if path in held:
                    for value in tensors_in([values[node], filled(node.args, values)]):
                        walk.hold(value, held[path])
        elif node.op == "output":
            for value in tensors_in(filled(node.args, values)):
                walk.channels.pin(walk.labels(value), "it reaches the model's output")


def _placeholders(walk: Walk, program: ExportedProgram, model: nn.Module) -> dict[torch.fx.Node, Any]:
    """Parameter for what the state_dict holds (the rest is made anew when the model is), labels that do not move for other tensors."""
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), name)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    targets = dict(program.graph_signature.inputs_to_parameters) | dict(program.graph_signature.inputs_to_buffers)
    values: dict[torch.fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            tensor, shape = tensors.get(targets.get(node.name)), getattr(node.meta.get("val"), "shape", None)
            if id(tensor) in first and tensor.is_floating_point():
                values[node] = Parameter(first[id(tensor)], tuple(tensor.shape))
            elif shape is not None:
                values[node] = walk.fixed(
                    shape, "it comes from the model's input" if tensor is None else f"it comes from {targets[node.name]}"
                )
    return values
