"""FLOPs against counts by hand: 2 × multiply-adds."""

import pytest
import torch
from torch import nn

from mpx.measure.flops import count_flops, rnn_flop

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
BATCH, TIME, INPUTS, HIDDEN = 3, 4, 5, 8


def counted(model: nn.Module, x: torch.Tensor, backward: bool) -> int:
    x = x.requires_grad_(backward)  # so that the first layer's input gradient is counted too
    with count_flops() as counter, torch.set_grad_enabled(backward):
        output = model(x)
        output = output[0] if isinstance(output, tuple) else output
        if backward:
            output.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_linear(backward):
    assert counted(nn.Linear(16, 32), torch.randn(4, 16), backward) == 2 * 4 * 16 * 32 * (3 if backward else 1)


@pytest.mark.parametrize("backward", [False, True])
def test_convolution(backward):
    # 6 filters of 3×3×2 over 8×8 positions
    model = nn.Conv2d(2, 6, 3, padding=1)
    assert counted(model, torch.randn(4, 2, 8, 8), backward) == 2 * 4 * 8 * 8 * 6 * 2 * 9 * (3 if backward else 1)


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize(("kind", "positions"), [(nn.Conv2d, 4 * 4), (nn.ConvTranspose2d, 8 * 8)])  # of the output, of the input
def test_grouped_convolution(kind, positions, groups):
    """Of 8 channels each filter sees 8/groups: no gradient takes more than the forward pass."""
    model = kind(8, 16, 3, stride=2, padding=1, groups=groups)
    forward = 2 * 4 * positions * 16 * 8 // groups * 9
    assert counted(model, torch.randn(4, 8, 8, 8), False) == forward
    assert counted(model, torch.randn(4, 8, 8, 8), True) == 3 * forward


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (1, True), (2, True)])
def test_lstm(device, backward, layers, bidirectional):
    directions = 2 if bidirectional else 1
    model = nn.LSTM(INPUTS, HIDDEN, layers, batch_first=True, bidirectional=bidirectional).to(device)
    per_layer = [INPUTS] + [directions * HIDDEN] * (layers - 1)
    forward = sum(directions * 2 * BATCH * TIME * 4 * HIDDEN * (inputs + HIDDEN) for inputs in per_layer)
    assert counted(model, torch.randn(BATCH, TIME, INPUTS, device=device), backward) == forward * (3 if backward else 1)


def test_lstm_without_a_fused_operator_has_the_same_forward_count():
    model = nn.LSTM(INPUTS, HIDDEN, batch_first=True).double()  # oneDNN has no float64: PyTorch multiplies step by step
    assert counted(model, torch.randn(BATCH, TIME, INPUTS).double(), False) == 2 * BATCH * TIME * 4 * HIDDEN * (INPUTS + HIDDEN)


def test_packed_sequence_counts_real_tokens_only():
    assert rnn_flop((7, INPUTS), [(32, INPUTS), (32, HIDDEN), (32,), (32,)]) == 2 * 7 * 32 * (INPUTS + HIDDEN)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("mask", [None, "padding"])
def test_attention_forward(device, mask):
    batch, heads, time, size = 2, 2, 16, 8
    q = torch.randn(batch, heads, time, size, device=device)
    allowed = torch.ones(batch, 1, 1, time, dtype=torch.bool, device=device) if mask else None
    with count_flops() as counter, torch.no_grad():
        nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=allowed)
    assert counter.get_total_flops() == 2 * 2 * batch * heads * time * time * size  # scores, then values


def test_attention_backward_is_counted():
    q = torch.randn(2, 2, 16, 8, requires_grad=True)
    forward = 2 * 2 * 2 * 2 * 16 * 16 * 8
    with count_flops() as counter:
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    assert counter.get_total_flops() == forward * 3.5  # two products forward; backward recomputes the scores: five
