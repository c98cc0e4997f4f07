"""Time a call: the median of samples after a warm-up. A sample is long enough that the clock's resolution and
launches do not matter.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

from mpx.measure.windows import Clock

SAMPLE_S = 0.02  # of one sample; a GPU's launches then queue up, as they do in training
WARMUP_S = 0.1  # in which clocks rise, caches fill and libraries choose algorithms
MIN_SAMPLES, MAX_SAMPLES = 5, 50


@dataclass(frozen=True)
class Timing:
    seconds: float  # of one call, median over samples
    samples: int
    calls: int  # in one sample


def median_time(
    call: Callable[[], object], device: torch.device, budget_s: float, warmup_s: float | None = None
) -> Timing:
    """Time `call` for about `budget_s` seconds, after `warmup_s` seconds (None: WARMUP_S). On CUDA, events
    read the device's clock.
    """
    once = elapsed(call, device, 1)
    warmups = max(1, ceil((WARMUP_S if warmup_s is None else warmup_s) / once))
    once = elapsed(call, device, warmups) / warmups
    calls = max(1, round(SAMPLE_S / once))
    samples = min(MAX_SAMPLES, max(MIN_SAMPLES, round(budget_s / (calls * once))))
    times = [elapsed(call, device, calls) / calls for _ in range(samples)]
    return Timing(statistics.median(times), samples, calls)


def elapsed(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Seconds that `calls` calls in a row take on `device`."""
    clock = Clock(device)
    clock.synchronize()
    first = clock.mark()
    for _ in range(calls):
        call()
    last = clock.mark()
    clock.synchronize()
    return clock.between(first, last) / 1e3
