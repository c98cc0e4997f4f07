"""Values computed from weights: each of their dimensions, called a side, has its own channels.

A weight [out, in] that is standardised before use can be reordered by rows and by columns. An operation that
commutes with reordering the rows, and with reordering the columns, commutes with both. So its rule is called
once for each side, and takes the other sides as constant.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpx.private.torch_dispatch import tree_leaves, tree_map, tree_map_only
from mpx.sparsity.permutation.channels import UNIFORM, moving_dims
from mpx.sparsity.permutation.rules_math import ELEMENTWISE, REDUCTIONS
from mpx.sparsity.permutation.rules_shape import COPIES, MOVES, RESHAPES
from mpx.sparsity.permutation.walk import Parameter, Sides, Value, Walk

BY_SIDES = {*ELEMENTWISE, *REDUCTIONS, *MOVES, *COPIES, *RESHAPES, "_weight_norm", "batch_norm", "index"}


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
