"""Put back what a run changes in the libraries of its process. mpx.precision.switches does that for PyTorch's precision switches."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mpx.runs.random_state import restore_states, states

LOGGERS = ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch")


@contextmanager
def library_state() -> Iterator[None]:
    """After the block, random states, PyTorch's determinism and threads, and the levels of Lightning's loggers are as before it."""
    cudnn = torch.backends.cudnn
    random, levels = states(), {name: logging.getLogger(name).level for name in LOGGERS}
    deterministic, only_warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    threads, of_cudnn = torch.get_num_threads(), (cudnn.benchmark, cudnn.deterministic)
    try:
        yield
    finally:
        restore_states(random)
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warned)
        cudnn.benchmark, cudnn.deterministic = of_cudnn
        torch.set_num_threads(threads)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
