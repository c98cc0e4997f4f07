"""The walk: find the channels that may change places, operation by operation in torch.export's graphs of the
model.

    groups, reasons = find_groups(model, calls(example_input))

An operation without a rule pins all channels that reach it, so an unknown operation reduces the gain but
never the correctness.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from mpx.private.torch_dispatch import schema_of
from mpx.sparsity.permutation.channels import UNIFORM, Axis, Group
from mpx.sparsity.permutation.operations import described, filled, name_of, result, tensors_in
from mpx.sparsity.permutation.rules_functions import COPIES
from mpx.sparsity.permutation.trace import Call, refuse_other_calls, trace
from mpx.sparsity.permutation.walk import Parameter, Walk


def find_groups(
    model: nn.Module, ways: list[Call], *, exhaustive: bool = False
) -> tuple[list[Group], dict[Axis, list[str | None]]]:
    """Groups of exchangeable channels, and per axis and position the reason why it stays (None: it can move).

    Joins the facts of all calls in both modes. exhaustive: the model is only called in these ways. model: in
    evaluation mode. Raises CannotTrace, also if the model could be called in other ways (trace.py).
    """
    programs = trace(model, ways)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    if not exhaustive:
        used = {id(tensors[name]) for program in programs for name in _used(program)}
        refuse_other_calls(model, ways, used)
    walk = Walk()
    for program in {_form(one): one for one in programs}.values():
        _follow(walk, program, _placeholders(walk, program, tensors, first_names(model)))
    return walk.channels.solve()


def first_names(model: nn.Module) -> dict[int, str]:
    """The ids of the tensors in the state_dict, with the first name of each."""
    return {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}


def _used(program: ExportedProgram) -> list[str]:
    """Names of the parameters and buffers that an operation takes."""
    targets = _targets(program)
    return [targets[node.name] for node in program.graph.nodes if node.name in targets and node.users]


def _targets(program: ExportedProgram) -> dict[str, str]:
    """Names of the parameters and buffers, by the names of their graph nodes."""
    return {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}


def _form(program: ExportedProgram) -> tuple:
    """Equal for two graphs with the same facts. Whether dropout is active does not matter."""
    shown = [
        (node.target, node.args[:1] if name_of(node) in COPIES else node.args, node.kwargs)
        for node in program.graph.nodes
    ]
    return tuple(map(str, shown))


def _follow(walk: Walk, program: ExportedProgram, values: dict[torch.fx.Node, Any]) -> None:
    """values: those of the placeholders; gets those of the operations."""
    aliases = Aliases(walk)
    for node in program.graph.nodes:
        if node.op == "call_function":
            walk.operation = described(node)
            values[node] = result(walk, node, values)
            aliases.follow(node, values)
        elif node.op == "output":
            for value in tensors_in(filled(node.args, values)):
                walk.channels.pin(walk.labels(value), "it reaches the model's output")


def _placeholders(
    walk: Walk, program: ExportedProgram, tensors: dict[str, Tensor], first: dict[int, str]
) -> dict[torch.fx.Node, Any]:
    """A Parameter for each tensor of the state_dict, and labels that do not move for all others, which the
    model computes itself.
    """
    targets, values = _targets(program), dict[torch.fx.Node, Any]()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            target, shape = targets.get(node.name), getattr(node.meta.get("val"), "shape", None)
            tensor = None if target is None else tensors.get(target)
            if tensor is not None and id(tensor) in first and tensor.is_floating_point():
                values[node] = Parameter(first[id(tensor)], tuple(tensor.shape))
            elif shape is not None:
                source = "the model's input" if tensor is None else target
                values[node] = walk.fixed(shape, f"it comes from {source}")
    return values


class Aliases:
    """Which results of a graph share memory, followed operation by operation.

    After an in-place write all views of the memory have the new values, but the graph names only the view
    that was written to.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._first: dict[torch.fx.Node, torch.fx.Node] = {}  # view -> the result that owns the memory
        self._views: dict[torch.fx.Node, list[torch.fx.Node]] = {}

    def follow(self, node: torch.fx.Node, values: dict) -> None:
        """Tie the labels of this operation's result, which `values` has, to those of the tensors that it
        wrote to.
        """
        schema = schema_of(node.target)
        if schema is None or any(one.alias_info is not None for one in schema.returns):
            self._share(node)
        for argument, written in zip(schema.arguments, node.args, strict=False) if schema else ():
            if (
                argument.alias_info is not None
                and argument.alias_info.is_write
                and isinstance(written, torch.fx.Node)
            ):
                self._write(written, node, values)

    def _share(self, node: torch.fx.Node) -> None:
        source = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else node
        first = self._first[node] = self._first.get(source, source)
        self._views.setdefault(first, [first]).append(node)

    def _write(self, written: torch.fx.Node, by: torch.fx.Node, values: dict) -> None:
        if values.get(written) is None:
            return
        olds, news = self.walk.sides(values[written]), self.walk.sides(values[by])
        if len(olds) != len(news):
            for value in (values[written], values[by]):
                self.walk.hold(value, self.walk.unknown)
            return
        for old, new in zip(olds, news, strict=True):
            self.walk.tie(old, new)
        old, new = olds[0], news[0]
        others = [one for one in self._views[self._first[by]] if one not in (written, by)]
        # the other views would still count as uniform
        if others and bool(((old == UNIFORM) & (new != UNIFORM)).any()):
            reason = f"{self.walk.operation} writes into a part of a tensor"
            self.walk.channels.pin(new, reason)
            for one in (*others, written, by):
                if isinstance(values.get(one), Tensor):
                    values[one] = self.walk.fixed(values[one].shape, reason)
