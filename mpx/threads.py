"""PyTorch's threads on the CPU, fewer of them for a moment: for small work that would otherwise wait for all of them, some of which are
late where other programs use the cores too."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
