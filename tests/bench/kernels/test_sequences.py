"""LSTMs and attention: which sizes are measured, what they are checked against, and why a kernel will not run."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mpx.bench.kernels import attention, lstm
from mpx.measure.matmul import WrongProductError

CPU = torch.device("cpu")


@pytest.mark.parametrize(("size", "found"), [(32, [32]), (64, [64]), (160, [160]), (2048, [512, 2048])])
def test_the_longest_sequences_are_always_measured(size, found):
    assert attention.lengths(size, torch.device("cuda")) == found
    assert attention.lengths(size, CPU) == [size]


@pytest.mark.parametrize("direction", lstm.DIRECTIONS)
def test_lstm_is_checked_part_by_part(direction):
    made = lstm.work(direction, "fp32", 16, 4, 8, CPU)
    out = made.call()
    assert made.error(out) < 1e-5
    if direction == "forward":
        assert out.shape == (4, 8, 16)
        wrong = [out * 1.01]
    else:
        assert [tuple(part.shape) for part in out[:3]] == [(4, 8, 16), (64, 16), (64, 16)]
        wrong = [(*out[:i], out[i] * 1.01, *out[i + 1 :]) for i in (0, 1, len(out) - 1)]
    for each in wrong:
        with pytest.raises(WrongProductError):
            made.error(each)


def test_lstm_flops_are_those_of_its_matrices():
    forward, training = (lstm.work(direction, "fp32", 16, 4, 8, CPU).flops for direction in lstm.DIRECTIONS)
    assert forward == 2 * 4 * 8 * 2 * (64 * 16 + 64 * 16)
    assert training == 3 * forward


@pytest.mark.parametrize("mask", attention.MASKS)
def test_attention_reference_is_pytorchs_in_float64(mask):
    q, k, v = (torch.randn(3, 2, 8, 4, dtype=torch.float64) for _ in range(3))
    keep = attention._padding((3, 2, 8, 4), CPU) if mask == "padding" else None
    expected = scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=mask == "causal")
    assert torch.allclose(attention._exactly("forward", mask, q, k, v, v), expected)


def test_padding_leaves_out_the_end_of_every_second_sequence():
    keep = attention._padding((4, 1, 8, 4), CPU)
    assert keep.sum(-1).flatten().tolist() == [8, 6, 8, 6]


@pytest.mark.parametrize("direction", attention.DIRECTIONS)
def test_another_mask_would_be_noticed(direction):
    plain, causal = (attention.work(direction, mask, "bf16", (2, 2, 32, 64), CPU) for mask in ("none", "causal"))
    assert plain.error(plain.call()) < 0.01
    assert causal.flops == plain.flops / 2
    with pytest.raises(WrongProductError):
        plain.error(causal.call())


def test_backward_can_be_repeated():
    made = attention.work("backward", "none", "fp32", (2, 1, 16, 64), CPU)
    first, again = made.call(), made.call()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_reason_is_what_pytorch_says():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at /pytorch/aten/sdp_utils.cpp:920.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at x)",
        "Flash attention kernel not used because: (Triggered internally at x)",
        "Flash Attention does not support non-null attn_mask. (Triggered internally at\n x)",
    ]
    assert attention._why(said) == "Flash Attention does not support non-null attn_mask."
    assert attention._why([]) is None
