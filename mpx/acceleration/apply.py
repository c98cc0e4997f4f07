"""What was chosen, applied to one run: the layout of its model, the graph of its steps, its compiled loss."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpx.acceleration.choice import Choice
from mpx.acceleration.compiled import Compiled
from mpx.acceleration.graph import StepGraph
from mpx.acceleration.search import CudnnSearch

Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch (x, y)


@dataclass(frozen=True)
class Acceleration:
    """The means by which training steps run; each is None where it is not used."""

    search: CudnnSearch | None = None  # cuDNN's, among its convolution algorithms
    graph: StepGraph | None = None  # replays whole steps
    compiled: Compiled | None = None  # the loss of a batch

    def given_up(self) -> dict[str, str]:
        """Why a mean that was chosen is not used after all, by the name of its key."""
        means = {"cuda_graphs": self.graph, "compile": self.compiled}
        return {name: mean.given_up for name, mean in means.items() if mean is not None and mean.given_up}

    def counts(self) -> tuple[int, int]:
        """Steps replayed and calls compiled so far."""
        return self.graph.replayed if self.graph else 0, self.compiled.calls if self.compiled else 0

    def record(self) -> dict[str, Any]:
        """What came of it, for result.json."""
        found = {"graph": self.graph, "compiled": self.compiled}
        return {name: mean.record() for name, mean in found.items() if mean is not None}


def apply(choice: Choice, model: nn.Module, loss: Loss, *, version: Callable[[], Any], searched: Callable[[], None]) -> Acceleration:
    """Lay the model out as chosen, and make the means to run its steps. Prints what was chosen and why.

    version: as StepGraph takes it. searched: called when cuDNN's search is over.
    """
    say(choice.line())
    if choice.channels_last:
        model.to(memory_format=torch.channels_last)
    search = CudnnSearch(over=searched) if choice.benchmark else None
    graph = compiled = None
    if choice.cuda_graphs:
        graph = StepGraph(model, version, required=choice.by_hand, tell=say, channels_last=choice.channels_last)
    if choice.compile != "off":
        asked = choice.why["compile"].startswith("trainer.compile")
        compiled = Compiled(loss, choice.compile, in_graph=choice.cuda_graphs, required=asked, tell=say)
    return Acceleration(search, graph, compiled)


def say(line: str) -> None:
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(line, flush=True)
