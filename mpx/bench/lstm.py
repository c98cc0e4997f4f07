"""A two-layer LSTM over tokens, by format and width: forward alone, and forward with backward.

On a GPU it runs in a CUDA graph, as in training: cuDNN launches several kernels for each token, and eager
calls wait for the launches.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from mpx.bench.tables import About, device_name, notes, pivot, say
from mpx.bench.work import Result, Row, Work, against, graphed, ladder, rounding, timed
from mpx.measure.flops import rnn_flop
from mpx.precision.formats import FORMATS
from mpx.render.picture import Picture, picture
from mpx.render.rates import curves_of, rates_figure

MEASURED = ("fp32", "tf32", "fp16", "bf16")
DIRECTIONS = ("forward", "forward + backward")
HIDDEN = {"cpu": 128, "cuda": 1024}
SHAPE = {"cpu": (16, 32), "cuda": (256, 128)}  # sequences, tokens
LAYERS = 2


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per direction, format and width. size: the largest of three widths, each twice the one
    before.
    """
    batch, tokens = SHAPE[device.type]
    how = "graph" if device.type == "cuda" else "eager"
    for hidden in ladder(HIDDEN[device.type] if size == "auto" else int(size), steps=3):
        for fmt in MEASURED:
            announce(f"an LSTM of width {hidden} in {fmt}")
            for direction in DIRECTIONS:
                about: Row = {
                    "device": device.type,
                    "how": how,
                    "direction": direction,
                    "format": fmt,
                    "hidden": hidden,
                }
                sizes = {"batch": batch, "tokens": tokens}
                make = partial(work, direction, fmt, hidden, batch, tokens, device)
                with warnings.catch_warnings():
                    # in BF16
                    warnings.filterwarnings("ignore", ".*weights are not part of single contiguous chunk.*")
                    yield about | sizes | timed(make, device, fmt)


def work(direction: str, fmt: str, hidden: int, batch: int, tokens: int, device: torch.device) -> Work:
    """Checks the outputs or, with backward, the gradients of inputs and weights for a random gradient of the
    outputs.
    """
    torch.manual_seed(0)
    model = nn.LSTM(hidden, hidden, LAYERS, batch_first=True).to(device, FORMATS[fmt].dtype)
    x, grad = (torch.randn(batch, tokens, hidden, device=device).to(FORMATS[fmt].dtype) for _ in range(2))
    run = _forward if direction == "forward" else _training
    weights = [tuple(weight.shape) for weight in model.parameters()]
    flops = rnn_flop(tuple(x.shape), weights) * (1 if direction == "forward" else 3)

    def reference() -> Result:
        exact = nn.LSTM(hidden, hidden, LAYERS, batch_first=True).to(device, torch.float64)
        exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
        return run(exact, x.double(), grad.double())

    made = Work(lambda: run(model, x, grad), against(reference, rounding(fmt, batch * tokens)), flops)
    return graphed(made) if device.type == "cuda" else made


def _forward(model: nn.LSTM, x: Tensor, grad: Tensor) -> Tensor:
    return model(x)[0]


def _training(model: nn.LSTM, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the inputs and of all weights. grad: of the outputs."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(model(x)[0], [x, *model.parameters()], grad)


def show(about: About, rows: list[Row]) -> None:
    graph = ", in a CUDA graph" if rows[0]["how"] == "graph" else ""
    title = (
        f"A two-layer LSTM over {rows[0]['batch']}×{rows[0]['tokens']} tokens on {device_name(about)}{graph}"
    )
    pivot(f"{title}, TFLOP/s by width", rows, ("direction", "format"), "hidden", "tflops_per_s")
    pivot("ms by width", rows, ("direction", "format"), "hidden", "ms", ".3f")
    say(
        "backward counts twice the operations of forward. Outputs and all gradients are checked against "
        "float64."
    )
    notes(about, rows, ("format", "hidden"))


def plot(about: About, rows: list[Row]) -> Picture | None:
    panels = curves_of(rows, "direction", "format", "hidden", "tflops_per_s")
    draw = partial(rates_figure, panels, "width", "TFLOP/s")
    return picture("lstm", "LSTM", device_name(about), "Logarithmic on both axes.", draw)
