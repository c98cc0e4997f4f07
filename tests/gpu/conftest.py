"""Tests of what needs a GPU. Most do not mind company; those marked `alone` time the device, or fill it, and
need it to themselves:

$ pytest tests/gpu -n 12 -m "not alone"
$ pytest tests/gpu -n 0 -m alone

With others on the device, or where pytest has several workers, the second kind is skipped and says who was in
the way.
"""

import os

import pytest
import torch

from mpx.measure.exclusive import exclusive


def pytest_runtest_setup(item):
    if item.get_closest_marker("alone") and (company := at_the_same_time() or on_a_gpu()) is not None:
        pytest.skip(
            f"needs the GPU to itself: {company}. Run it by `pytest tests/gpu -n 0 -m alone` when "
            "nothing else does"
        )


def at_the_same_time():
    """Workers that have not used the GPU yet may do so during the test."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return f"pytest runs {workers} tests at the same time" if workers > 1 else None


def on_a_gpu():
    found = (
        in_the_way(torch.device("cuda", index))
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    )
    return next(filter(None, found), None)


def in_the_way(device):
    """Who else computes on the device, in words; None where nobody does, or where that cannot be known."""
    torch.zeros(1, device=device)  # so that this process is among those that NVML counts
    alone, reason = exclusive(device)
    return None if alone or reason.startswith("NVML:") else reason
