"""What a run uses of CUDA graphs, torch.compile, cuDNN's search and channels_last; and putting that into
effect: the layout of its model, the graph of its steps, its compiled loss, cuDNN's search.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mpx.acceleration.compiled import Compiled
from mpx.acceleration.graph import WARMUP, StepGraph
from mpx.precision.switches import searching
from mpx.system.launch import launch

Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch (x, y)
PLACES = {  # what each data.loader means
    "resident": "data on the device",
    "workers": "batches from the host",
    "device": "images decoded on the GPU",
}


@dataclass(frozen=True)
class Choice:
    cuda_graphs: bool
    compile: str  # off or a mode of torch.compile
    graphs_required: bool  # the user asks for CUDA graphs, so the run fails without them
    benchmark: bool = False  # cuDNN times its convolution algorithms and takes the fastest
    # images and filters are in memory pixel by pixel instead of channel by channel
    channels_last: bool = False
    why: dict[str, str] = field(default_factory=dict)  # the reason for each of the above
    undecided: bool = False  # the first steps are timed, then the others are compiled if that pays
    on_gpu: bool = False
    loader: str | None = None  # one of PLACES; chosen by mpx.data
    # cuda_graphs, compile: why it is not advised, whatever was asked for
    against: dict[str, str] = field(default_factory=dict)

    def with_loader(self, loader: str, why: str) -> "Choice":
        """The same choice with the loader that mpx.data has chosen."""
        return replace(self, loader=loader, why=self.why | {"loader": why})

    def line(self) -> str:
        """What was chosen and why, in one line. CUDA graphs and the data's place are mentioned on a GPU
        only.
        """
        graphs = "CUDA graphs" if self.cuda_graphs else "no CUDA graphs"
        compiled = "not compiled" if self.compile == "off" else f"compiled ({self.compile})"
        compiled += " yet" if self.undecided else ""
        words = {"cuda_graphs": graphs} if self.on_gpu else {}
        words |= {"compile": compiled}
        if self.benchmark or self.why["benchmark"].startswith("trainer.benchmark=true"):
            words["benchmark"] = (
                "cuDNN's algorithms timed" if self.benchmark else ("cuDNN's algorithms not timed")
            )
        words |= {"channels_last": "channels_last"} if self.channels_last else {}
        if self.on_gpu and self.loader is not None:
            words["loader"] = PLACES[self.loader]
        return "speed: " + "; ".join(f"{said} ({self.why[name]})" for name, said in words.items())

    def record(self) -> dict:
        chosen = ("cuda_graphs", "compile", "benchmark", "channels_last", "loader")
        return {name: getattr(self, name) for name in chosen} | {"why": dict(self.why)}


class CudnnSearch:
    """A context for each training step. Evaluation does not search: its last batch has a size of its own.

    PyTorch keeps one choice per convolution, searched or not (aten/src/ATen/native/cudnn/Conv_v8.cpp,
    benchmark_cache). If the first step of a run does not search, no later step does. over: called once,
    before the second step. The memory that the tried algorithms take would count as the training's.
    """

    def __init__(self, over: Callable[[], None]):
        self.over, self._steps = over, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._steps == 1:
            self.over()
        self._steps += 1
        with searching():
            yield


@dataclass(frozen=True)
class Acceleration:
    """How training steps run. Each part is None if it is not used."""

    search: CudnnSearch | None = None  # lets cuDNN time its convolution algorithms
    graph: StepGraph | None = None  # replays whole steps
    compiled: Compiled | None = None  # computes the loss of a batch

    @property
    def replayed(self) -> int:
        """Steps so far."""
        return self.graph.replayed if self.graph else 0

    @property
    def steady_after(self) -> int:
        """The steps after which all take equally long: one that is watched, those before the recording, the
        recording, and one more.
        """
        return (WARMUP if self.graph is None else self.graph.warmup) + 3

    def compile(self, step: int) -> None:
        """Compile the steps from now on. step: optimizer steps before."""
        if self.compiled is not None:
            self.compiled.start(step)
        if self.graph is not None:
            self.graph.restart()

    def warmup(self) -> int:
        """The steps until several devices replay theirs: one that is watched, those before the recording, and
        the recording.
        """
        return self.graph.warmup + 2 if self.graph is not None and self.graph.ranks > 1 else 0

    def release(self) -> None:
        """Free the recorded step. NCCL does not end a process group whose collectives a graph holds."""
        if self.graph is not None:
            self.graph.release()

    def record(self) -> dict[str, Any]:
        """How often each part was used, for result.json."""
        parts = {"graph": self.graph, "compiled": self.compiled}
        return {name: part.record() for name, part in parts.items() if part is not None}


def apply(
    choice: Choice,
    model: nn.Module,
    loss: Loss,
    *,
    ranks: int,
    version: Callable[[], Any],
    searched: Callable[[], None],
) -> Acceleration:
    """Lay the model out as chosen and make what runs its steps. Prints the choice and the reasons.

    ranks, version: see StepGraph. searched: called when cuDNN's search is over.
    """
    say(choice.line())
    if choice.channels_last:
        model.to(memory_format=torch.channels_last)
    search = CudnnSearch(over=searched) if choice.benchmark else None
    graph = compiled = None
    if choice.cuda_graphs:
        graph = StepGraph(
            model,
            version,
            required=choice.graphs_required,
            tell=say,
            channels_last=choice.channels_last,
            ranks=ranks,
        )
    if choice.compile != "off" or choice.undecided:
        asked = choice.why["compile"].startswith("trainer.compile")
        mode, later = ("default", True) if choice.undecided else (choice.compile, False)
        compiled = Compiled(loss, mode, in_graph=choice.cuda_graphs, required=asked, tell=say, later=later)
    return Acceleration(search, graph, compiled)


def say(line: str) -> None:
    if launch().rank == 0:
        print(line, flush=True)
