"""cuDNN's search: the first time that it sees a convolution it times its algorithms, and then keeps to the fastest.

PyTorch keeps one choice per convolution, whether it was searched or not (aten/src/ATen/native/cudnn/Conv_v8.cpp, benchmark_cache): where
the first step of a run did not search, no later one does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cudnn_search(wanted: bool) -> Iterator[None]:
    """Not for evaluation, whose last batch has a size of its own that it would not pay for."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = wanted or before
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
