"""The emulated LSTM: cuDNN's own numbers in BF16, FP16 and TF32, and torch.nn.LSTM in every shape."""

import json
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import nn

from mpx.precision.emulate import Emulate
from mpx.precision.lstm import PERSISTENT, STANDARD, STATIC, kernel, lstm
from mpx.precision.rounding import ROUND

GOLDEN = json.loads((Path(__file__).parent / "cudnn_lstm.json").read_text())  # by experiments/emulation/golden.py, on an H200


@pytest.mark.parametrize(("fmt", "differing", "distance"), [("bf16", 0.005, 0.1), ("fp16", 0.1, 0.3), ("tf32", 1.0, 0.1)])
def test_cudnns_numbers(fmt, differing, distance, request):
    """Of the output and all gradients, the mean share of numbers that differ from cuDNN's, and the mean distance from cuDNN's, in units of
    cuDNN's own distance from the exact result.

    CPUs add in different orders, as do different numbers of threads, so that a sum may end on the other side of a rounding, of which FP16
    has eight times as many as BF16. One such sum moves a single gradient by more than the arithmetic of another kernel does; the means over
    all move less: in FP16 they are 0.05 to 0.07 and 0.16 to 0.23, and at least 0.16 and 0.34 with any property of another kernel
    but the joined biases, which change none of these numbers.
    """
    threads = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(1)
    case = GOLDEN[fmt]
    steps, batch, inputs, hidden = case["sizes"]
    torch.manual_seed(0)
    layer = nn.LSTM(inputs, hidden)
    x, gradient = torch.randn(steps, batch, inputs), torch.randn(steps, batch, hidden)
    leaves = [value.requires_grad_() for value in (x, torch.randn(1, batch, hidden) / 2, torch.randn(1, batch, hidden))]
    with Emulate(fmt):
        out, _ = layer(leaves[0], tuple(leaves[1:]))
        out.backward(gradient)
    exact = nn.LSTM(inputs, hidden).double()
    exact.load_state_dict(layer.state_dict())
    doubles = [value.detach().double().requires_grad_() for value in leaves]
    ideal, _ = exact(doubles[0], tuple(doubles[1:]))
    ideal.backward(gradient.double())
    values = {"out": (out, ideal)} | {name: (a.grad, b.grad) for name, a, b in zip(("x", "h", "c"), leaves, doubles, strict=True)}
    values |= {name: (p.grad, q.grad) for (name, p), q in zip(layer.named_parameters(), exact.parameters(), strict=True)}
    shares, distances = [], []
    for name, (emulated, reference) in values.items():
        flat, true = emulated.detach().flatten(), reference.detach().flatten()
        every = 1 if len(flat) <= 600 else max(7, len(flat) // 400)
        flat, true, native = flat[::every].double(), true[::every], torch.tensor(case[name], dtype=torch.float64)
        shares.append((flat != native).double().mean().item())
        distances.append(((flat - native).norm() / (native - true).norm()).item())
    assert mean(shares) <= differing, shares
    assert mean(distances) <= distance, distances


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"batch_first": True}, {"bias": False},
                                     {"num_layers": 2, "bidirectional": True, "batch_first": True}])  # fmt: skip
def test_close_to_the_layer_in_fp32(fmt, options):
    torch.manual_seed(1)
    layer, x = nn.LSTM(6, 8, **options), torch.randn(4, 5, 6, requires_grad=True)
    exact, (h, c) = layer(x)
    (expected,) = torch.autograd.grad(exact.square().sum(), x)
    with Emulate(fmt):
        out, (rounded_h, rounded_c) = layer(x)
        (got,) = torch.autograd.grad(out.square().sum(), x)
    tolerance = 0.05 if fmt == "bf16" else 0.01
    for a, b in ((out, exact), (rounded_h, h), (rounded_c, c), (got, expected)):
        assert a.shape == b.shape
        assert (a - b).norm() < tolerance * b.norm()
    if fmt != "tf32":
        assert torch.equal(ROUND[fmt](out), out)


def test_dropout_between_layers_only():
    torch.manual_seed(2)
    layer, x = nn.LSTM(6, 8, 2, dropout=0.5), torch.randn(4, 5, 6)
    with Emulate("bf16"):
        runs = [layer(x)[0] for _ in range(2)]
        layer.eval()
        still = [layer(x)[0] for _ in range(2)]
    assert not torch.equal(*runs)
    assert torch.equal(*still)


def test_gradients_by_finite_differences():
    """In TF32 with inputs that TF32 holds exactly nothing is rounded: the backward pass is that of the forward pass."""
    torch.manual_seed(3)
    weights = [torch.randint(-4, 5, shape).double() / 8 for shape in ((12, 2), (12, 3), (12,), (12,))]
    x, hx = torch.randint(-4, 5, (3, 2, 2)).double() / 4, (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
    leaves = [value.float().requires_grad_() for value in (x, *weights)]

    def loss(x, *flat):
        out, _, _ = lstm("tf32", x, hx, list(flat), True, 1, 0.0, True, False, False)
        return out.square().sum()

    loss(*leaves).backward()
    with torch.no_grad():
        for leaf in leaves:
            flat = leaf.view(-1)
            for i in range(0, len(flat), 5):
                step, kept = 2.0**-6, flat[i].item()
                flat[i] = kept + step
                above = loss(*leaves)
                flat[i] = kept - step
                below = loss(*leaves)
                flat[i] = kept
                assert leaf.grad.view(-1)[i] == pytest.approx(((above - below) / (2 * step)).item(), rel=0.03, abs=3e-3)


@pytest.mark.parametrize(
    ("fmt", "batch", "inputs", "units", "single", "expected"),
    [
        ("fp16", 64, 128, 256, True, STATIC),
        ("fp16", 64, 128, 256, False, STANDARD),
        ("fp16", 60, 128, 256, True, STANDARD),
        ("fp16", 136, 128, 256, True, STANDARD),
        ("fp16", 64, 64, 256, True, STANDARD),
        ("fp16", 64, 128, 1152, True, STANDARD),
        ("fp16", 64, 128, 128, True, PERSISTENT),  # PyTorch asks for STATIC, and an H200 computes this
        ("tf32", 64, 128, 128, True, PERSISTENT),
        ("tf32", 64, 128, 256, True, STANDARD),
        ("bf16", 64, 128, 64, True, STANDARD),
    ],
)
def test_which_kernel(fmt, batch, inputs, units, single, expected):
    assert kernel(fmt, batch, inputs, units, single=single) is expected
