"""Writing in place: other views of the same memory hold the new values too, but the graph names only the one that was written to."""

import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import UNIFORM
from mpx.sparsity.permutation.walk import Parameter, Walk


class Aliases:
    """Which results of a graph share memory, followed operation by operation."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._first: dict[torch.fx.Node, torch.fx.Node] = {}  # of each view: the result whose memory it is
        self._views: dict[torch.fx.Node, list[torch.fx.Node]] = {}

    def follow(self, node: torch.fx.Node, values: dict) -> None:
        """After `values` has this operation's labels: they and those of what it wrote to must agree."""
        schema = getattr(node.target, "_schema", None)
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
        old, new = values.get(written), values[by]
        if not isinstance(old, (Tensor, Parameter)) or not isinstance(new, Tensor) or new.shape != old.shape:
            return
        old = self.walk.labels(old)
        self.walk.tie(old, new)
        others = [one for one in self._views[self._first[by]] if one not in (written, by)]
        if others and bool(((old == UNIFORM) & (new != UNIFORM)).any()):  # the others would still be taken for uniform
            reason = f"{self.walk.operation} writes into a part of a tensor"
            self.walk.channels.pin(new, reason)
            for one in (*others, written, by):
                if isinstance(values.get(one), Tensor):
                    values[one] = self.walk.fixed(values[one].shape, reason)
