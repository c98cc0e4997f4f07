"""Check a kernel against float64, then time it, called one by one or several times in a CUDA graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from mpx.errors import one_line
from mpx.measure.ceilings import Card, card
from mpx.measure.matmul import Product, WrongProductError, float32_as, missing, relative_error
from mpx.measure.timing import median_time
from mpx.precision.formats import FORMATS
from mpx.precision.modes import cpu_has_bf16, lacks_instructions

Row = dict[str, Any]
RESULT = ("ms", "tflops_per_s", "gb_per_s", "relative_error", "samples", "reason")
BUDGET_S, WARMUP_S = 0.1, 0.03  # per kernel; the warm-up is short because another kernel has just run
GRAPH_CALLS = 10  # in one CUDA graph, so that launching it costs little beside them


@dataclass(frozen=True)
class Work:
    """call: is timed. error: the relative error of a call's result; raises WrongProductError where it is too
    large.

    flops: floating point operations of one execution. moved: the least bytes that it reads and writes.
    repeats: executions in a call.
    """

    call: Callable[[], Any]
    error: Callable[[Any], float]
    flops: float = 0.0
    moved: float = 0.0
    repeats: int = 1


def timed(
    make: Callable[[], Work], device: torch.device, fmt: str = "fp32", reason: str | None = None
) -> Row:
    """The columns of RESULT, or only `reason` where the kernel is refused or wrong, or lacks memory.

    fmt: in which it computes. reason: why it is known not to run; nothing is made then.
    """
    nothing = dict.fromkeys(RESULT)
    if (reason := reason or lacking(fmt, device)) is not None:
        return nothing | {"reason": reason}
    try:
        with torch.no_grad(), float32_as(fmt):
            work = make()
            error = work.error(work.call())
            timing = median_time(work.call, device, BUDGET_S, WARMUP_S)
    except (WrongProductError, RuntimeError) as stopped:
        return nothing | {"reason": one_line(stopped) or type(stopped).__name__}
    seconds = timing.seconds / work.repeats
    return nothing | {
        "ms": seconds * 1e3,
        "tflops_per_s": work.flops / seconds / 1e12 if work.flops else None,
        "gb_per_s": work.moved / seconds / 1e9 if work.moved else None,
        "relative_error": error,
        "samples": timing.samples,
    }


Result = Tensor | Sequence[Tensor]


def against(reference: Callable[[], Result], tolerance: float) -> Callable[[Result], float]:
    """Returns a function of a result: ‖out − ref‖ ÷ ‖ref‖ with ref in float64, or the largest of several
    tensors.

    It raises WrongProductError where this is above `tolerance` or NaN.
    """

    def error(out: Result) -> float:
        pairs = zip(_parts(out), _parts(reference()), strict=True)
        errors = [float((made.double() - exact).norm() / exact.norm()) for made, exact in pairs]
        if wrong := [value for value in errors if not value <= tolerance]:
            raise WrongProductError(f"wrong result: relative error {wrong[0]:.1e}, more than {tolerance:.1e}")
        return max(errors)

    return error


def _parts(result: Result) -> list[Tensor]:
    return [part.detach() for part in ([result] if isinstance(result, Tensor) else result)]


def rounding(fmt: str, terms: int) -> float:
    """The relative error that rounding explains: operands and results are in `fmt`, sums of `terms` products
    in FP32.

    It allows for algorithms that transform their operands, such as Winograd's, and for a chain of a few
    operations.
    """
    return 8 * FORMATS[fmt].epsilon + FORMATS["fp32"].epsilon * sqrt(terms)


def multiplied(made: Product, moved: float = 0.0) -> Work:
    """The work of a matrix product."""
    flops = 2.0 * made.a.numel() * made.b.shape[-1]
    return Work(made.call, lambda out: relative_error(made, out), flops, moved)


def graphed(work: Work) -> Work:
    """The work recorded GRAPH_CALLS times in one CUDA graph. `call` replays it and returns the last
    result.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries then make their handles and workspaces
            work.call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            out = work.call()

    def replay() -> Any:
        graph.replay()
        return out

    return replace(work, call=replay, repeats=GRAPH_CALLS)


def lacking(fmt: str, device: torch.device) -> str | None:
    """Why nothing is timed in `fmt` on `device`; None where it can be.

    A CPU without instructions for a format can be 100 times slower in it than in FP32.
    """
    if device.type == "cpu" and (fmt == "fp16" or (fmt == "bf16" and not cpu_has_bf16())):
        return lacks_instructions(fmt)
    return missing(fmt, device)


def ladder(largest: int, steps: int = 6) -> list[int]:
    """Sizes up to `largest`, each twice the one before. All but `largest` are multiples of 16, from 32 on."""
    sizes = [largest >> step for step in range(steps)]
    return [n for n in reversed(sizes) if n == largest or (n >= 32 and n % 16 == 0)]


def vendors(device: torch.device) -> Card | None:
    """The vendor's figures of the device, if its data sheet is known."""
    return card(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def share(rate: float | None, peak: float | None) -> float | None:
    return rate / peak if rate and peak else None
