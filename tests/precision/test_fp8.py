"""Linear layers in FP8: what is rounded to which format, scaled how; which layers; one graph for the
compiler; the kernel's values.
"""

import pytest
import torch
from few_steps import FEW_STEPS
from torch import nn

from mpx.precision.formats import to_bf16
from mpx.precision.fp8 import MIN_FEATURES, MIN_ROWS, Layers, linear


def values(x):
    """What FP8 makes of a matrix, in double precision: each row's largest value scaled to above 224, at most
    448, by a power of two.
    """
    scale = torch.exp2(torch.floor(torch.log2(448 / x.double().abs().amax(1, keepdim=True))))
    return (x * scale.float()).to(torch.float8_e4m3fn).double() / scale


def leaves():
    torch.manual_seed(0)
    x, w, b = to_bf16(torch.randn(32, 16)) * 2.0**-10, torch.randn(48, 16) * 50, torch.randn(48)
    return [value.requires_grad_() for value in (x, w, b)], to_bf16(torch.randn(32, 48)).bfloat16()


def test_by_hand_forward_and_backward():
    (x, w, b), g = leaves()
    out = linear(x, w, b, native=False)
    out.backward(g)
    g = g.float()
    assert torch.allclose(out.double(), values(x) @ values(w).T + to_bf16(b).double(), rtol=2**-8, atol=1e-6)
    assert torch.allclose(x.grad.double(), values(g) @ values(w.t()).T, rtol=2**-8, atol=1e-6)
    assert torch.allclose(w.grad.double(), (g.T @ x).double(), rtol=2**-8, atol=1e-6)
    assert torch.allclose(b.grad, g.sum(0))
    assert all(torch.equal(to_bf16(value), value) for value in (out.float().detach(), x.grad, w.grad))


def test_the_kernel_gives_what_the_emulation_gives():
    """PyTorch's own FP8 product, which also runs on a CPU."""
    found = []
    for native in (True, False):
        (x, w, b), g = leaves()
        try:
            out = linear(x, w, b, native=native)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"this PyTorch scales no rows on a CPU: {error}")
        out.backward(g)
        found.append([out.detach().float(), x.grad, w.grad, b.grad])
    assert all(torch.allclose(a, b, rtol=2**-7, atol=1e-6) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("rows", "shape", "every", "reason"),
    [
        (MIN_ROWS, (MIN_FEATURES, MIN_FEATURES), False, None),
        (MIN_ROWS - 1, (MIN_FEATURES, MIN_FEATURES), False, f"no gain is known below {MIN_ROWS:,} rows"),
        (
            MIN_ROWS,
            (MIN_FEATURES, MIN_FEATURES - 16),
            False,
            f"below {MIN_FEATURES:,} features FP8 gains little or loses",
        ),
        (MIN_ROWS, (MIN_FEATURES + 8, MIN_FEATURES), False, "its sizes are not multiples of 16"),
        (1, (16, 32), True, None),
        (1, (10, 16), True, "its sizes are not multiples of 16"),
    ],
)
def test_which_layers(rows, shape, every, reason):
    model = nn.ModuleDict({"model": nn.Linear(shape[1], shape[0], device="meta")})
    layers = Layers(every=every)
    assert layers.record(model) == []
    assert layers.take(torch.empty(1, rows, shape[1], device="meta"), model["model"].weight) == (
        reason is None
    )
    fmt = "fp8_e4m3" if reason is None else "bf16"
    assert layers.record(model) == [{"name": "weight", "shape": list(shape), "format": fmt, "reason": reason}]


def test_a_run_says_which_layers(train):
    few = ["model=mlp", "model.widths=[32,32]", *FEW_STEPS, "audit=true"]
    ran = train("precision=fp8", "precision.layers=all", *few)
    assert ran.code == 0, ran.err
    layers = ran.record["precision"]["linear_layers"]
    assert [(layer["format"], layer["reason"]) for layer in layers] == [
        ("fp8_e4m3", None),
        ("fp8_e4m3", None),
        ("bf16", "its sizes are not multiples of 16"),
    ]
    assert ran.record["precision"]["audit"]["as_promised"] == {"linear": 1.0, "matmul": 1.0}
    assert "2 of 3 linear layers; " in ran.out
    assert "its sizes are not multiples of 16" in ran.out
