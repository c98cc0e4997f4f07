"""FLOPs against counts by hand: 2 × multiply-adds."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from mpx.measure.flops import FlopCounter

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
BATCH, TIME, INPUTS, HIDDEN = 3, 4, 5, 8


def counted(model: nn.Module, x: torch.Tensor, backward: bool) -> int:
    x = x.requires_grad_(backward)  # so that the first layer's input gradient is counted too
    with FlopCounter() as counter, torch.set_grad_enabled(backward):
        output = model(x)
        output = output[0] if isinstance(output, tuple) else output
        if backward:
            output.sum().backward()
    return counter.total


def test_linear():
    for backward, times in ((False, 1), (True, 3)):
        assert counted(nn.Linear(16, 32), torch.randn(4, 16), backward) == times * 2 * 4 * 16 * 32


@pytest.mark.parametrize("groups", [1, 8])
# of the output, of the input
@pytest.mark.parametrize(("kind", "positions"), [(nn.Conv2d, 4 * 4), (nn.ConvTranspose2d, 8 * 8)])
def test_convolution(kind, positions, groups):
    """Of 8 channels each filter sees 8/groups: no gradient takes more than the forward pass."""
    model = kind(8, 16, 3, stride=2, padding=1, groups=groups)
    forward = 2 * 4 * positions * 16 * 8 // groups * 9
    assert counted(model, torch.randn(4, 8, 8, 8), False) == forward
    assert counted(model, torch.randn(4, 8, 8, 8), True) == 3 * forward


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
def test_lstm(device, backward, layers, bidirectional):
    directions = 2 if bidirectional else 1
    model = nn.LSTM(INPUTS, HIDDEN, layers, batch_first=True, bidirectional=bidirectional).to(device)
    per_layer = [INPUTS] + [directions * HIDDEN] * (layers - 1)
    forward = sum(directions * 2 * BATCH * TIME * 4 * HIDDEN * (inputs + HIDDEN) for inputs in per_layer)
    assert counted(model, torch.randn(BATCH, TIME, INPUTS, device=device), backward) == forward * (
        3 if backward else 1
    )


@pytest.mark.parametrize(
    ("first", "second", "ends", "products"),
    [
        pytest.param((24, 16), (3, 16, 32), [8, 8, 24], [(8, 16, 32), (16, 16, 32)], id="rows of each group"),
        pytest.param(
            (3, 8, 16), (16, 48), [16, 16, 48], [(8, 16, 16), (8, 16, 32)], id="columns of each group"
        ),
        pytest.param((8, 48), (48, 16), [16, 16, 48], [(8, 16, 16), (8, 32, 16)], id="terms of each group"),
        pytest.param((3, 8, 16), (3, 16, 32), None, [(8, 16, 32)] * 3, id="a matrix of each group"),
    ],
)
def test_grouped_products(first, second, ends, products):
    """As of a mixture of experts. The second of the three groups is empty. products: rows, terms, columns."""
    a, b = (torch.randn(shape, dtype=torch.bfloat16) for shape in (first, second))
    with FlopCounter() as counter:
        nn.functional.grouped_mm(a, b, offs=None if ends is None else torch.tensor(ends, dtype=torch.int32))
    assert counter.total == sum(2 * rows * terms * columns for rows, terms, columns in products)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("mask", [None, "padding"])
def test_attention_forward(device, mask):
    batch, heads, time, size = 2, 2, 16, 8
    q = torch.randn(batch, heads, time, size, device=device)
    allowed = torch.ones(batch, 1, 1, time, dtype=torch.bool, device=device) if mask else None
    with FlopCounter() as counter, torch.no_grad():
        nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=allowed)
    assert counter.total == 2 * 2 * batch * heads * time * time * size  # scores, then values


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_backward_has_the_same_flops_by_each_kernel(device, kernel):
    """Two products forward, four backward. A fused kernel computes the scores once more, which is no
    arithmetic of the model.
    """
    q = torch.randn(2, 2, 16, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    with FlopCounter() as counter, sdpa_kernel(kernel):
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    assert counter.total == 3 * 2 * 2 * 2 * 2 * 16 * 16 * 8


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_not_arithmetic_of_the_model(reentrant):
    layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())

    class Saving(nn.Module):
        def forward(self, x):
            return checkpoint(layers, x, use_reentrant=reentrant)

    assert (
        counted(Saving(), torch.randn(4, 16), True)
        == counted(layers, torch.randn(4, 16), True)
        == 3 * 2 * 4 * (16 + 32) * 32
    )


@pytest.mark.parametrize("closing", [False, True])
def test_an_optimizers_own_products_are_no_arithmetic_of_the_model(closing):
    """Muon orthogonalises by matrix products. A forward pass of a teacher, without gradients, is the model's
    within a closure, too.
    """
    model, teacher, x = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False), torch.randn(4, 16)
    optimizer = torch.optim.Muon(model.parameters())

    def compute():
        with torch.no_grad():
            wanted = teacher(x)
        (model(x) - wanted).square().sum().backward()

    with FlopCounter() as counter:
        optimizer.step(compute) if closing else (compute(), optimizer.step())
    assert counter.total == 2 * 4 * 16 * 32 * (1 + 2)
    with FlopCounter() as counter:
        model(x)
    assert counter.total == 2 * 4 * 16 * 32
