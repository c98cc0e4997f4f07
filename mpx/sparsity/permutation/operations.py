"""One operation of a graph: apply its rule, or pin its channels if it has none.

A rule of LAYERS takes parameters themselves, any other one their labels. A value computed from weights has
channels of its own in each of its dimensions, called a side: a weight [out, in] that is standardised before
use can be reordered by rows and by columns. An operation that commutes with reordering the rows, and with
reordering the columns, commutes with both. So its rule is called once for each side, and takes the other
sides as constant.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpx.private.torch_dispatch import schema_of, tree_leaves, tree_map, tree_map_only
from mpx.sparsity.permutation.channels import UNIFORM, moving_dims
from mpx.sparsity.permutation.rules_functions import (
    COPIES,
    ELEMENTWISE,
    FUNCTIONS,
    LIKE_OTHER,
    MOVES,
    REDUCTIONS,
    RESHAPES,
    UNIFORM_VALUES,
)
from mpx.sparsity.permutation.rules_layers import LAYERS
from mpx.sparsity.permutation.walk import Parameter, Sides, Value, Walk

BY_SIDES = {*ELEMENTWISE, *REDUCTIONS, *MOVES, *COPIES, *RESHAPES, "_weight_norm", "batch_norm", "index"}


def result(walk: Walk, node: torch.fx.Node, values: dict) -> Any:
    """Labels of an operation's result: a tensor, a list of tensors, or None for anything else."""
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]
    many = isinstance(node.meta.get("val"), (list, tuple))
    shapes: list[Any] = [
        getattr(one, "shape", None) for one in (node.meta["val"] if many else [node.meta.get("val")])
    ]
    if not any(isinstance(shape, torch.Size) for shape in shapes):
        return None  # a check, or a number
    try:
        labels = _apply_rule(walk, node, values, shapes)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
        # a form of the operation that its rule does not cover, such as an input without a batch dimension
        labels = None
    if labels is None:
        labels = [shape if shape is None else _unknown(walk, node, values, shape) for shape in shapes]
    labels = list(labels) if isinstance(labels, (list, tuple)) else [labels]
    if name_of(node) not in MOVES:
        for one in (side for value in labels if value is not None for side in walk.sides(value)):
            walk.tag(one)  # channels that this operation acts on do not change places with other channels
    return labels if many else labels[0]


def _apply_rule(walk: Walk, node: torch.fx.Node, values: dict, shapes: list[torch.Size]) -> Any:
    """The labels by this operation's rule; None if there is no rule or if it does not cover these
    arguments.
    """
    name, given, function = name_of(node), _arguments(node, values), node.target
    if name in LAYERS and not (name in BY_SIDES and isinstance(given.get("input"), (Parameter, Sides))):
        return LAYERS[name](walk, shapes, **given)
    if name in LIKE_OTHER:
        given["other"] = walk.uniform(given["other"].shape)
    operands = tensors_in(given)
    could_move = (
        any(not isinstance(one, Tensor) or bool((one >= 0).any()) for one in operands)
        or name in UNIFORM_VALUES
    )
    if not could_move or (name not in FUNCTIONS and name not in MOVES and name not in BY_SIDES):
        return None

    def rule(given: dict[str, Any]) -> Any:
        if name in MOVES and callable(function):
            return function(*[given[one.name] for one in schema_of(function).arguments if not one.kwarg_only])
        return (FUNCTIONS.get(name) or LAYERS[name])(walk, shapes, **given)

    if name in BY_SIDES and any(len(walk.sides(one)) > 1 for one in operands):
        return by_sides(walk, rule, given, shapes)
    return rule(tree_map_only((Parameter, Sides), walk.labels, given))


def _unknown(walk: Walk, node: torch.fx.Node, values: dict, shape: torch.Size) -> Tensor:
    """Pin all channels that reach this operation. If none could move anyway, the result keeps the reason of
    the operands.
    """
    operands = tensors_in(_arguments(node, values))
    still = [one for one in operands if isinstance(one, Tensor) and one.numel() and bool((one < 0).all())]
    if len(still) == len(operands):
        return still[0].reshape(-1)[0].expand(shape) if still else walk.fixed(shape, "it is a constant")
    return walk.give_up(shape, *operands)


def _arguments(node: torch.fx.Node, values: dict) -> dict[str, Any]:
    """Every argument by its name in the operation's schema, with labels and parameters in place of graph
    nodes.
    """
    schema = schema_of(node.target)
    if schema is None:
        return {"args": filled(node.args, values), "kwargs": filled(dict(node.kwargs), values)}
    given = {one.name: one.default_value for one in schema.arguments}
    return (
        given | dict(zip(given, filled(node.args, values), strict=False)) | filled(dict(node.kwargs), values)
    )


def filled(arguments: Any, values: dict) -> Any:
    return tree_map(lambda one: values.get(one) if isinstance(one, torch.fx.Node) else one, arguments)


def tensors_in(values: Any) -> list[Tensor | Parameter | Sides]:
    return [one for one in tree_leaves(values) if isinstance(one, (Tensor, Parameter, Sides))]


def name_of(node: torch.fx.Node) -> str:
    """`relu` for aten.relu_.default."""
    schema = schema_of(node.target)
    name = schema.name.split("::")[1] if schema else str(node.target)
    return name if name.startswith("_") else name.rstrip("_")


def described(node: torch.fx.Node) -> str:
    """`relu in layers.3`, for reasons."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    place = modules[-1] if modules else ""
    return f"{name_of(node)} in {place}" if place else name_of(node)


def by_sides(
    walk: Walk, rule: Callable[[dict[str, Any]], Any], given: dict[str, Any], shapes: list[torch.Size]
) -> Any:
    """The result of `rule` if an operand has several sides. For a norm, only the input counts; its rule
    handles the parameters.
    """
    operands = [one for one in tree_leaves(given.get("input", given)) if isinstance(one, Value)]
    passes = _passes(
        walk, [[(moving_dims(side), side) for side in walk.sides(one)] for one in operands], operands
    )
    # it is unclear which sides belong together, so take the last side of each, as for an activation
    if passes is None:
        return rule(tree_map_only((Parameter, Sides), walk.labels, given))
    numbers = {id(one): number for number, one in enumerate(operands)}

    def replaced(seen: list[Tensor]) -> dict[str, Any]:
        return tree_map(lambda one: seen[numbers[id(one)]] if id(one) in numbers else one, given)

    results = [rule(replaced(seen)) for seen in passes]
    if results and isinstance(results[0], (list, tuple)):
        return [_joined(walk, list(several), shapes[0]) for several in zip(*results, strict=True)]
    return _joined(walk, results, shapes[0])


def _passes(
    walk: Walk, sides: list[list[tuple[tuple[int, ...], Tensor]]], operands: list[Value]
) -> list[list[Tensor]] | None:
    """The operands for each side, while only that side moves; None if it is unclear which sides belong
    together.
    """
    own = [[(dims, side) for dims, side in each if bool((side > 0).any())] for each in sides]
    moving = [number for number, each in enumerate(own) if each]
    if len(moving) == 1:
        chosen = [{moving[0]: side} for _, side in own[moving[0]]]
    else:
        every = {dims for each in own for dims, _ in each}
        if any(len(dims) != 1 for dims in every) or any(len(dict(each)) < len(each) for each in own):
            return None
        chosen = [
            {number: dict(own[number])[dims] for number in moving if dims in dict(own[number])}
            for dims in sorted(every)
        ]
    return [seen for one in chosen if (seen := _seen(walk, one, operands)) is not None]


def _seen(walk: Walk, moving: dict[int, Tensor], operands: list[Value]) -> list[Tensor] | None:
    """The operands while only these labels move. None if another operand varies along the same dimensions;
    the labels are then held.
    """
    dims = moving_dims(next(iter(moving.values())))
    seen = []
    for number, one in enumerate(operands):
        if number in moving:
            seen.append(moving[number])
        elif isinstance(one, Tensor) and bool((one == UNIFORM).all()):
            seen.append(one)
        elif all(len(one.shape) < -dim or one.shape[dim] == 1 for dim in dims):
            seen.append(walk.fixed(one.shape, walk.unknown))
        else:
            for side in moving.values():
                walk.hold(side, walk.unknown)
            return None
    return seen


def _joined(walk: Walk, results: list[Tensor], shape: torch.Size) -> Tensor | Sides:
    moving = [one for one in results if bool((one > 0).any())]
    if len(moving) > 1:
        return Sides(tuple(moving))
    return moving[0] if moving else results[0] if results else walk.fixed(shape, walk.unknown)
