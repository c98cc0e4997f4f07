"""A two-layer LSTM over tokens, by format and width: forward alone, and forward with backward. On a GPU in a CUDA graph, as training runs
it: cuDNN launches several kernels for each token, and eager calls wait for the launches."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mpx.bench.kernels.work import RESULT, Result, Work, against, graphed, ladder, refused, rounding, timed, too_slow
from mpx.measure.flops import rnn_flop
from mpx.measure.matmul import float32_as, missing
from mpx.precision.formats import FORMATS

COLUMNS = ("device", "how", "direction", "format", "hidden", "batch", "tokens", *RESULT)
MEASURED = ("fp32", "tf32", "fp16", "bf16")
DIRECTIONS = ("forward", "forward + backward")
HIDDEN = {"cpu": 128, "cuda": 1024}
SHAPE = {"cpu": (16, 32), "cuda": (256, 128)}  # sequences, tokens
LAYERS = 2


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per direction, format and width. size: the largest of three widths, each twice the one before."""
    batch, tokens = SHAPE[device.type]
    same = {"device": device.type, "how": "graph" if device.type == "cuda" else "eager", "batch": batch, "tokens": tokens}
    for hidden in ladder(HIDDEN[device.type] if size == "auto" else size, steps=3):
        for fmt in MEASURED:
            announce(f"an LSTM of width {hidden} in {fmt}")
            reason = missing(fmt, device) or (_slow(fmt, hidden, device) if device.type == "cpu" else None)
            for direction in DIRECTIONS:
                about = same | {"direction": direction, "format": fmt, "hidden": hidden}
                make = lambda f=fmt, h=hidden, d=direction: work(d, f, h, batch, tokens, device)  # noqa: E731
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", ".*weights are not part of single contiguous chunk.*")  # in BF16
                    made = refused(reason) if reason else timed(make, device, float32_as(fmt))
                yield about | made


def work(direction: str, fmt: str, hidden: int, batch: int, tokens: int, device: torch.device) -> Work:
    """Checks the outputs or, with backward, the gradients of inputs and weights for a random gradient of the outputs."""
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


def _slow(fmt: str, hidden: int, device: torch.device) -> str | None:
    """Why the LSTM is left out, judged by a few tokens."""
    batch, tokens = SHAPE[device.type]
    probe = work("forward", fmt, hidden, batch, 8, device)
    return too_slow(probe, 3 * probe.flops * tokens / 8, device)
