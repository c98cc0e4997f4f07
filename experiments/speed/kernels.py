"""Which kernels does a step run: mpx's and the loop's by hand? And what does an LSTM layer take in FP16 and in BF16? Needs a GPU.

$ python experiments/speed/kernels.py

Writes kernels.csv into $OUT, or here: microseconds and calls of each kernel in a step, by CUPTI, and the median time of a recorded
forward and backward pass of nn.LSTM, as kernel `all`.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # behind this folder, whose card.py is another
from collecting import Arguments, table  # noqa: E402

from mpx.measure.trace import ON_DEVICE, busy, read_trace  # noqa: E402

CASES = (("lstm", "amp_bf16"), ("lstm", "amp"), ("bert_small", "amp_bf16"), ("bert_small", "amp"))
COLUMNS = ("model", "precision", "contender", "kernel", "us_per_step", "calls_per_step")
STEPS = 20  # of which the kernels are counted
LEAST_US, NAME = 0.5, 120  # a row is at least so many microseconds of a step, and has so many letters of a kernel's name
LSTM = (256, 128, 512)  # samples, tokens, features


def of_a_step(contender: Any) -> Iterator[dict[str, Any]]:
    """A row per kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        samples_per_s = contender.samples_per_s()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json.gz")
        profiler.export_chrome_trace(str(trace))
        yield from kernels(read_trace(trace), step_us=1e6 * contender.setup.batch / samples_per_s)


def kernels(events: list[dict[str, Any]], step_us: float) -> Iterator[dict[str, Any]]:
    """Of the busiest window of STEPS steps near the end of a run, whose last quarter of a second is left out: mpx evaluates there."""
    ran = [event | {"name": event["name"][:NAME]} for event in events if event.get("cat") in ON_DEVICE]
    last = max(event["ts"] for event in ran) - 0.25e6
    ends = (last - 5 * shift * step_us for shift in range(40))
    windows = ([event for event in ran if end - STEPS * step_us <= event["ts"] < end] for end in ends)
    window = max(windows, key=lambda window: sum(event["dur"] for event in window))
    for name, (calls, ms) in busy(window).kernels.items():
        if 1e3 * ms >= LEAST_US * STEPS:
            yield {"kernel": name, "us_per_step": 1e3 * ms / STEPS, "calls_per_step": calls / STEPS}


def of_an_lstm(fmt: str, way: str) -> float:
    """Milliseconds of a recorded forward and backward pass. way: `as trained` from FP32 weights, or `cast` before, weights in `fmt`."""
    import torch

    from mpx.bench.kernels.work import Work, graphed
    from mpx.measure.timing import median_time
    from mpx.precision.recurrent import BFloat16RNN

    dtype, (batch, tokens, features) = getattr(torch, fmt), LSTM
    weights = dtype if way == "cast" else torch.float32
    model = torch.nn.LSTM(features, features, 2, batch_first=True, dropout=0.1, device="cuda").to(weights)
    x = torch.randn(batch, tokens, features, device="cuda", dtype=weights, requires_grad=True)
    gradient = torch.randn(batch, tokens, features, device="cuda", dtype=dtype)

    def step() -> None:
        for tensor in (*model.parameters(), x):
            tensor.grad = None
        bf16 = BFloat16RNN() if way == "as trained" and dtype == torch.bfloat16 else nullcontext()
        with torch.autocast("cuda", dtype=dtype, enabled=way == "as trained"), bf16:
            y = model(x)[0]
        y.backward(gradient)

    recorded = graphed(Work(step, error=lambda _: 0.0))
    return 1e3 * median_time(recorded.call, torch.device("cuda"), budget_s=1).seconds / recorded.repeats


def rows() -> Iterator[dict[str, Any]]:
    from front_door import Mpx
    from hand import Loop
    from setups import setup

    from mpx.compiler_cache import keep_apart

    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
    for fmt in ("float16", "bfloat16"):
        for way in ("as trained", "cast"):
            yield {"model": "nn.LSTM", "precision": fmt, "contender": way, "kernel": "all", "us_per_step": 1e3 * of_an_lstm(fmt, way)}
    for model, precision in CASES:
        keep_apart(contenders=precision)  # the loop's compiled code, as mpx keeps its own
        here = setup(model, precision, tiny=False)
        for name, contender in (("hand", Loop(here, "hand")), ("mpx", Mpx(here, "auto"))):
            contender.samples_per_s()  # compiles
            for row in of_a_step(contender):
                yield {"model": model, "precision": precision, "contender": name} | row


def main() -> None:
    Arguments().parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: this needs a CUDA GPU, whose kernels it counts.")
    with table(Path(os.environ.get("OUT", HERE)) / "kernels.csv", COLUMNS) as add:
        for row in rows():
            add(row)


if __name__ == "__main__":
    main()
