"""Self-attention with its projections as layers computes what nn.MultiheadAttention computes, and other attention stays as it is."""

import pytest
import torch
from own_net import Net
from torch import nn

from mpx.deploy.attention import SelfAttention, layer_by_layer, split
from mpx.deploy.kernel_times import with_kernels
from mpx.deploy.kernels import Kernel

CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] * 5 + [True]])
PER_HEAD = torch.rand(12, 6, 6) < 0.3
PER_HEAD[:, :, 0] = False  # each query has a key left
CALLS = {
    "plain": {},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "masked": {"attn_mask": CAUSAL.bool()},
    "padded": {"key_padding_mask": PADDING},
    "causal and padded": {"attn_mask": CAUSAL, "is_causal": True, "key_padding_mask": PADDING.float().masked_fill(PADDING, -torch.inf)},
    "a mask for each head": {"attn_mask": PER_HEAD, "key_padding_mask": None},
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("case", CALLS)
@torch.no_grad()
def test_attention(case, batch_first, bias):
    plain = nn.MultiheadAttention(32, 4, bias=bias, batch_first=batch_first).eval()
    x = torch.randn(3, 6, 32) if batch_first else torch.randn(6, 3, 32)
    expected, _ = plain(x, x, x, need_weights=False, **CALLS[case])
    found, weights = SelfAttention(plain)(x, x, x, need_weights=False, **CALLS[case])
    torch.testing.assert_close(found, expected)
    assert weights is None


@torch.no_grad()
def test_a_transformer_has_layers_that_products_can_replace():
    model, x = Net((1, 6, 8), 10).eval().requires_grad_(False), torch.randn(3, 1, 6, 8)
    made = split(model, x)
    names = [name for name, layer in made.named_modules() if type(layer) is nn.Linear]
    assert len(names) == 2 + 2 * 4  # in_proj, out_proj, linear1 and linear2 of each layer
    expected = model(x)
    with layer_by_layer():
        torch.testing.assert_close(made(x), expected)
        served = with_kernels(made, {name: Kernel("fp16") for name in names}, {})  # dense products
        torch.testing.assert_close(served(x), expected)
    assert torch.backends.mha.get_fastpath_enabled()


class Crosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.own = nn.MultiheadAttention(16, 2, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x.flip(1), x.flip(1))[0] + self.own(x, key=x, value=x)[0]


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        found, weights = self.attention(x, x, x)
        return found * weights.sum()


@torch.no_grad()
def test_other_attention_stays_as_it_is():
    x = torch.randn(2, 5, 16)
    crosses = Crosses().eval()
    made = split(crosses, x)
    assert (type(made.attention), type(made.own)) == (nn.MultiheadAttention, SelfAttention)
    torch.testing.assert_close(made(x), crosses(x))
    for model in (Looks().eval(), nn.Linear(16, 16)):
        assert split(model, x) is model
