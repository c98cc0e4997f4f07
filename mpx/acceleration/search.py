"""cuDNN's search: the first time that it sees a convolution it times its algorithms, and then keeps to the fastest.

PyTorch keeps one choice per convolution, whether it was searched or not (aten/src/ATen/native/cudnn/Conv_v8.cpp, benchmark_cache): where
the first step of a run did not search, no later one does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class CudnnSearch:
    """Entered around each training step. Not for evaluation, whose last batch has a size of its own that it would not pay for.

    over: called once, before the second step: what the algorithms that were tried needed is no measure of the training's memory
    (ResNet-18 on 256 images of 28×28 in FP16 on an H200: 4.4 GiB instead of 0.7).
    """

    def __init__(self, over: Callable[[], None]):
        self.over, self._steps = over, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._steps == 1:
            self.over()
        self._steps += 1
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before
