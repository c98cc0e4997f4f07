"""cuDNN's search: it times its algorithms the first time that it sees a convolution, and keeps the fastest.

PyTorch keeps one choice per convolution, searched or not (aten/src/ATen/native/cudnn/Conv_v8.cpp, benchmark_cache). If the first step of a
run does not search, no later step does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def searching() -> Iterator[None]:
    """A context in which cuDNN searches."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class CudnnSearch:
    """A context for each training step. Evaluation does not search: its last batch has a size of its own, for which it would not pay off.

    over: called once, before the second step. The memory that the tried algorithms take would count as the training's.
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
