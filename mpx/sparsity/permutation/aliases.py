"""In-place writes: all views of the memory get the new values, but the graph names only the view that was written to."""

import torch
from torch import Tensor

from mpx.private.torch_dispatch import schema_of
from mpx.sparsity.permutation.channels import UNIFORM
from mpx.sparsity.permutation.walk import Walk


class Aliases:
    """Which results of a graph share memory, followed operation by operation."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._first: dict[torch.fx.Node, torch.fx.Node] = {}  # view -> the result that owns the memory
        self._views: dict[torch.fx.Node, list[torch.fx.Node]] = {}

    def follow(self, node: torch.fx.Node, values: dict) -> None:
        """Tie the labels of this operation's result, which `values` has, to those of the tensors that it wrote to."""
        schema = schema_of(node.target)
        if schema is None or any(one.alias_info is not None for one in schema.returns):
            self._share(node)
        for argument, written in zip(schema.arguments, node.args, strict=False) if schema else ():
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(written, torch.fx.Node):
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
        if others and bool(((old == UNIFORM) & (new != UNIFORM)).any()):  # the other views would still count as uniform
            reason = f"{self.walk.operation} writes into a part of a tensor"
            self.walk.channels.pin(new, reason)
            for one in (*others, written, by):
                if isinstance(values.get(one), Tensor):
                    values[one] = self.walk.fixed(values[one].shape, reason)
