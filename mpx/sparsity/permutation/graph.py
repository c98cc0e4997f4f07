"""The walk: torch.export's graphs of a model, operation by operation, give the channels that may change places.

    groups, reasons = find_groups(model, calls(example_input))

An operation without a rule pins whatever channels reach it, so an unknown one costs gain, never correctness.
"""

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from mpx.sparsity.permutation.aliases import Aliases
from mpx.sparsity.permutation.channels import Axis, Group
from mpx.sparsity.permutation.frames import open_modules, stack, within
from mpx.sparsity.permutation.rules_layers import LAYERS
from mpx.sparsity.permutation.rules_math import MATH
from mpx.sparsity.permutation.rules_recurrent import RECURRENT
from mpx.sparsity.permutation.rules_shape import COPIES, MOVES, SHAPES, UNIFORM_VALUES
from mpx.sparsity.permutation.trace import Call, trace
from mpx.sparsity.permutation.walk import Parameter, Walk

STORED = LAYERS | RECURRENT  # rules that want parameters themselves, not their labels
COMPUTED = MATH | SHAPES
MAY_BE_COMPUTED = ("input", "self", "hx", "indices")  # the arguments of a layer that are not its parameters


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
    shown = [(node.target, node.args[:1] if _name(node) in COPIES else node.args, node.kwargs) for node in program.graph.nodes]
    return tuple(map(str, shown))


def _follow(walk: Walk, program: ExportedProgram, model: nn.Module, held: dict[str, str]) -> None:
    values = _placeholders(walk, program, model)
    aliases = Aliases(walk)
    for node in program.graph.nodes:
        if node.op == "call_function":
            walk.operation = _described(node)
            values[node] = _result(walk, node, values)
            aliases.follow(node, values)
            for path in within(node) if held else ():
                if path in held:
                    for value in _tensors([values[node], _filled(node.args, values)]):
                        walk.hold(value, held[path])
        elif node.op == "output":
            for value in _tensors(_filled(node.args, values)):
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


def _result(walk: Walk, node: torch.fx.Node, values: dict) -> Any:
    """Labels of an operation's result: a tensor, a list of tensors, or None for anything else."""
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]
    many = isinstance(node.meta.get("val"), (list, tuple))
    shapes = [getattr(one, "shape", None) for one in (node.meta["val"] if many else [node.meta.get("val")])]
    if not any(isinstance(shape, torch.Size) for shape in shapes):
        return None  # a check, or a number
    try:
        labels = _apply_rule(walk, node, values, shapes)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, NotImplementedError):
        labels = None  # a form of the operation that its rule does not foresee, such as an input without a batch dimension
    if labels is None:
        labels = [shape if shape is None else _unknown(walk, node, values, shape) for shape in shapes]
    labels = list(labels) if isinstance(labels, (list, tuple)) else [labels]
    if _name(node) not in MOVES:
        for one in labels:
            walk.tag(one)  # what this operation acts on does not change places with what it leaves alone
    return labels if many else labels[0]


def _apply_rule(walk: Walk, node: torch.fx.Node, values: dict, shapes: list[torch.Size]) -> Any:
    """What this operation's rule says; None where there is no rule or it does not cover such arguments."""
    name, given = _name(node), _arguments(node, values)
    if name in STORED:
        own = [value for key, value in given.items() if key not in MAY_BE_COMPUTED]
        if any(isinstance(value, Tensor) for value in _tensors(own)):
            return None  # a weight that is itself computed
        return STORED[name](walk, shapes, **given)
    operands = _tensors(given)
    could_move = any(isinstance(one, Parameter) or bool((one >= 0).any()) for one in operands) or name in UNIFORM_VALUES
    if not could_move or (name not in COMPUTED and name not in MOVES):
        return None
    given = tree_map_only(Parameter, walk.labels, given)
    if name in MOVES:
        return node.target(*[given[one.name] for one in node.target._schema.arguments if not one.kwarg_only])
    return COMPUTED[name](walk, shapes, **given)


def _unknown(walk: Walk, node: torch.fx.Node, values: dict, shape: torch.Size) -> Tensor:
    """Nothing that reaches this operation moves; if nothing could, its result comes from where its operands come from."""
    operands = _tensors(_arguments(node, values))
    still = [one for one in operands if isinstance(one, Tensor) and one.numel() and bool((one < 0).all())]
    if len(still) == len(operands):
        return still[0].reshape(-1)[0].expand(shape) if still else walk.fixed(shape, "it is a constant")
    results = [walk.give_up(one, shape) for one in operands]
    return results[0]


def _arguments(node: torch.fx.Node, values: dict) -> dict[str, Any]:
    """Every argument by its name in the operation's schema, with labels and parameters in place of graph nodes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {"args": _filled(node.args, values), "kwargs": _filled(dict(node.kwargs), values)}
    given = {one.name: one.default_value for one in schema.arguments}
    return given | dict(zip(given, _filled(node.args, values), strict=False)) | _filled(dict(node.kwargs), values)


def _filled(arguments: Any, values: dict) -> Any:
    return tree_map(lambda one: values.get(one) if isinstance(one, torch.fx.Node) else one, arguments)


def _tensors(values: Any) -> list[Tensor | Parameter]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, (Tensor, Parameter))]


def _name(node: torch.fx.Node) -> str:
    """`relu` for aten.relu_.default."""
    schema = getattr(node.target, "_schema", None)
    name = schema.name.split("::")[1] if schema else str(node.target)
    return name if name.startswith("_") else name.rstrip("_")


def _described(node: torch.fx.Node) -> str:
    """`relu in layers.3`, for reasons."""
    place = next(iter(stack(node)[::-1]), "")
    return f"{_name(node)} in {place}" if place else _name(node)
