"""Emulated matmul, conv and attention: operands and results are rounded, forward and backward."""

import pytest
import torch
from mpx.precision.observe import Observe
from torch import nn

from mpx.precision.emulate import Emulate
from mpx.precision.modes import MODES, SWITCHES, emulated, float32_matmuls
from mpx.precision.rounding import ROUND, to_fp16, to_tf32

CPU = torch.device("cpu")


def representable(x, fmt):
    return torch.equal(ROUND[fmt](x), x)


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("make", [lambda: nn.Linear(8, 6), lambda: nn.Conv2d(4, 6, 3)])
def test_16_bit_results_and_gradients_are_representable(make, fmt):
    torch.manual_seed(0)
    layer = make()
    x = torch.randn((5, 8) if isinstance(layer, nn.Linear) else (2, 4, 7, 7), requires_grad=True)
    with Emulate(fmt):
        out = layer(x)
        out.sum().backward()
    assert representable(out.detach(), fmt)
    assert representable(x.grad, fmt)
    assert representable(layer.weight.grad, fmt)


def test_linear_by_hand():
    torch.manual_seed(1)
    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    with Emulate("fp16"):
        out = torch.nn.functional.linear(x, w, b)
    assert torch.equal(out, to_fp16(torch.addmm(to_fp16(b), to_fp16(x), to_fp16(w).T)))


def test_tf32_rounds_operands_and_keeps_results_in_fp32():
    torch.manual_seed(2)
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    with Emulate("tf32"):
        out = a @ b
    assert torch.equal(out, to_tf32(a) @ to_tf32(b))
    assert not representable(out, "tf32")


def test_fp16_overflows_in_the_backward_pass():
    x = torch.full((1, 4), 300.0, requires_grad=True)
    w = torch.full((4, 1), 300.0)
    with Emulate("fp16"):
        ((x @ w) * 1000.0).sum().backward()
    assert torch.isinf(x.grad).all()


def test_lstm_and_attention_are_rounded():
    torch.manual_seed(3)
    lstm, x = nn.LSTM(8, 16, batch_first=True), torch.randn(2, 5, 8)
    q = torch.randn(1, 2, 8, 16)
    exact, exact_attention = lstm(x)[0], torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with Emulate("fp16"):
        rounded, attention = lstm(x)[0], torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert representable(rounded.detach(), "fp16")
    assert representable(attention, "fp16")
    assert torch.allclose(rounded, exact, atol=1e-2)
    assert torch.allclose(attention, exact_attention, atol=1e-2)


def test_what_is_emulated_on_a_cpu():
    wishes = {name: [emulated(mode, CPU, wish) for wish in ("auto", "always")] for name, mode in MODES.items()}
    assert wishes == {"fp32": [False, False], "tf32": [True, True], "amp": [True, True], "amp_bf16": [False, True]}
    assert not emulated(MODES["amp"], CPU, "never")


@pytest.mark.parametrize(("mode", "emulate", "value"), [("fp32", False, "ieee"), ("tf32", False, "tf32"), ("tf32", True, "ieee")])
def test_switches_are_set_and_put_back(mode, emulate, value):
    before = [switch.fp32_precision for switch in SWITCHES]
    with float32_matmuls(MODES[mode], emulate=emulate):
        assert [switch.fp32_precision for switch in SWITCHES] == [value] * 3
        # what Lightning and torch.compile read; it raises where the old API and the new one disagree
        assert torch.get_float32_matmul_precision() == ("high" if value == "tf32" else "highest")
        assert torch.backends.cudnn.allow_tf32 is (value == "tf32")
    assert [switch.fp32_precision for switch in SWITCHES] == before


@pytest.mark.parametrize(("mode", "emulate", "fmt"), [("fp32", False, "fp32"), ("amp", True, "fp16"), ("amp_bf16", False, "bf16")])
def test_observe_counts_calls_by_format(mode, emulate, fmt):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    observe = Observe(MODES[mode], emulate=emulate)
    with observe, torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "amp_bf16"):
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert observe.counts() == {"conv": {fmt: 2}, "matmul": {fmt: 3}}
