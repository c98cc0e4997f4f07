"""A kernel to measure: checked against float64 before it is timed, called one by one or many times in a CUDA graph."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from mpx.measure.matmul import WrongProductError
from mpx.measure.timing import elapsed, median_time
from mpx.precision.formats import FORMATS

RESULT = ("ms", "tflops_per_s", "gb_per_s", "relative_error", "samples", "reason")
BUDGET_S, WARMUP_S = 0.1, 0.03  # of timing and before it, per kernel: one follows another, so the clocks are up
LONGEST_S = {"cpu": 0.15, "cuda": 1.0}  # of one call; what would take longer is left out, with that as the reason
LONGEST_REASON = 120  # letters of a reason
PROBES = 3  # the fastest counts: a probe takes microseconds, and another program may hold up one of them for a thousand times as long
IN_A_GRAPH = 10  # calls recorded one after another, so that launching the graph costs little beside them


@dataclass(frozen=True)
class Work:
    """call: what is timed. error: the relative error of what it returns; raises WrongProductError where that is too large.

    flops, moved: floating point operations, and bytes read and written at the least, of one execution. repeats: executions in a call.
    """

    call: Callable[[], Any]
    error: Callable[[Any], float]
    flops: float = 0.0
    moved: float = 0.0
    repeats: int = 1


def timed(make: Callable[[], Work], device: torch.device, within: AbstractContextManager | None = None) -> dict[str, Any]:
    """The columns of RESULT; where the kernel is refused or wrong, or memory too small, only `reason`. within: a context to run it in."""
    nothing = dict.fromkeys(RESULT)
    try:
        with torch.no_grad(), within or nullcontext():
            work = make()
            error = work.error(work.call())
            timing = median_time(work.call, device, BUDGET_S, WARMUP_S)
    except (WrongProductError, RuntimeError) as stopped:
        return nothing | {"reason": one_line(stopped)}
    seconds = timing.seconds / work.repeats
    return nothing | {
        "ms": seconds * 1e3,
        "tflops_per_s": work.flops / seconds / 1e12 if work.flops else None,
        "gb_per_s": work.moved / seconds / 1e9 if work.moved else None,
        "relative_error": error,
        "samples": timing.samples,
    }


def refused(reason: str) -> dict[str, Any]:
    return dict.fromkeys(RESULT) | {"reason": reason}


def one_line(error: BaseException) -> str:
    """The message up to LONGEST_REASON letters: to the end of its last sentence in there, or of its last word and an ellipsis."""
    text = " ".join(str(error).split())
    if len(text) > LONGEST_REASON:
        whole = text[:LONGEST_REASON].rpartition(". ")[0]
        text = f"{whole}." if whole else f"{text[:LONGEST_REASON].rpartition(' ')[0]} …"
    return text or type(error).__name__


Result = Tensor | Sequence[Tensor]


def against(reference: Callable[[], Result], tolerance: float) -> Callable[[Result], float]:
    """‖out − ref‖ ÷ ‖ref‖, ref in float64; of several tensors the largest.

    Raises WrongProductError where that is above `tolerance`, or not a number.
    """

    def error(out: Result) -> float:
        pairs = zip(_parts(out), _parts(reference()), strict=True)
        errors = [float((found.double() - expected).norm() / expected.norm()) for found, expected in pairs]
        if wrong := [found for found in errors if not found <= tolerance]:
            raise WrongProductError(f"wrong result: relative error {wrong[0]:.1e}, more than {tolerance:.1e}")
        return max(errors)

    return error


def _parts(result: Result) -> list[Tensor]:
    return [part.detach() for part in ([result] if isinstance(result, Tensor) else result)]


def rounding(fmt: str, terms: int) -> float:
    """Relative error that rounding explains where operands and results are in `fmt` and sums of `terms` products in FP32.

    With room for algorithms that transform their operands first, as Winograd's, and for a chain of a few operations.
    """
    return 8 * FORMATS[fmt].epsilon + FORMATS["fp32"].epsilon * sqrt(terms)


def graphed(work: Work) -> Work:
    """The same, recorded IN_A_GRAPH times in one CUDA graph; `call` replays it and returns what its last execution wrote."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries make their handles and workspaces
            work.call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            out = work.call()

    def replay() -> Any:
        graph.replay()
        return out

    return replace(work, call=replay, repeats=IN_A_GRAPH)


def too_slow(probe: Work, flops: float, device: torch.device) -> str | None:
    """Why `flops` operations are not tried, judged by a small `probe`: native FP16 runs 100 × slower than FP32 on some CPUs."""
    elapsed(probe.call, device, 1)  # the first one loads kernels
    seconds = min(elapsed(probe.call, device, 1) for _ in range(PROBES))
    return would_take(seconds / probe.flops * flops, device)


def would_take(seconds: float, device: torch.device) -> str | None:
    return f"one call would take about {seconds:.2g} s" if seconds > LONGEST_S[device.type] else None


def ladder(largest: int, steps: int = 6) -> list[int]:
    """Sizes from small to large, each twice the one before, from 32 on, all multiples of 16."""
    sizes = [largest >> step for step in range(steps)]
    return [n for n in reversed(sizes) if n == largest or (n >= 32 and n % 16 == 0)]
