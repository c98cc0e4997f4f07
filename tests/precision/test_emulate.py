"""Emulated operations: which types tensors have, and where operands, results and gradients are rounded."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

from mpx.errors import UserError
from mpx.precision import modes
from mpx.precision.emulate import Emulate
from mpx.precision.formats import FORMATS, ROUND, to_fp16, to_tf32
from mpx.precision.modes import MODES, emulated, remedy
from mpx.precision.switches import SWITCHES, float32_matmuls

CPU, INF = torch.device("cpu"), float("inf")


DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def representable(x, fmt):
    return torch.equal(ROUND[fmt](x.float()), x.float())


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(8, 6), lambda: nn.Conv2d(4, 6, 3), lambda: nn.Conv1d(4, 6, 3)]
)
def test_16_bit_results_and_gradients_are_representable(make, fmt):
    torch.manual_seed(0)
    layer = make()
    x = torch.randn(
        (5, 8) if isinstance(layer, nn.Linear) else (2, 4, *[7] * (layer.weight.dim() - 2)),
        requires_grad=True,
    )
    with Emulate(fmt):
        out = layer(x)
        out.sum().backward()
    assert out.dtype == DTYPES[fmt]
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    assert all(representable(gradient, fmt) for gradient in (x.grad, layer.weight.grad, layer.bias.grad))


def test_linear_by_hand():
    torch.manual_seed(1)
    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    with Emulate("fp16"):
        out = linear(x, w, b)
    assert torch.equal(out, torch.addmm(to_fp16(b), to_fp16(x), to_fp16(w).T).half())


def test_tf32_rounds_operands_and_keeps_results_in_fp32():
    torch.manual_seed(2)
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    with Emulate("tf32"):
        out = a @ b
    assert torch.equal(out, to_tf32(a) @ to_tf32(b))
    assert not representable(out, "tf32")


@pytest.mark.parametrize("shape", [(8, 4), (2, 4, 4)], ids=["matrix", "sequence"])
def test_a_bias_gradient_overflows(shape):
    """It is a sum over the batch, and its bias was cast to FP16."""
    layer = nn.Linear(4, 2)
    with Emulate("fp16"):
        (layer(torch.ones(shape) / 1024) * 16384.0).sum().backward()
    assert layer.bias.grad.tolist() == [INF, INF]
    assert layer.weight.grad.tolist() == [[128.0] * 4] * 2


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_add_up(kind, fmt):
    """Autograd adds them in place, by an operation that PyTorch does not have on a CPU for 16 bits."""
    embedding = kind(5, 2, sparse=True, **({"mode": "sum"} if kind is nn.EmbeddingBag else {})).to(
        FORMATS[fmt].dtype
    )
    for indices in ([0, 1], [1, 2], [2, 3]):
        with Emulate(fmt, autocast=False):
            embedding(torch.tensor([indices])).sum().backward()
    assert embedding.weight.grad.to_dense()[:, 0].tolist() == [1, 2, 2, 1, 0]


ATTENTION = {
    "plain": {}, "causal": {"is_causal": True}, "mask": {"attn_mask": torch.ones(6, 6,
    dtype=torch.bool).tril(1)},
    "bias": {"attn_mask": torch.linspace(-1, 1, 36).view(6, 6)}, "scale": {"scale": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("kind", [*ATTENTION, "learned bias"])
def test_attention_is_attention(kind):
    """In the limit of a fine format: BF16 against PyTorch's own in FP32, result and gradients, those of a
    bias too.
    """
    torch.manual_seed(3)
    leaves = [torch.randn(2, 3, 6, 8, requires_grad=True) for _ in range(3)]
    options = ATTENTION.get(kind, {})
    if kind == "learned bias":
        leaves.append(torch.randn(3, 1, 6, requires_grad=True))  # broadcast over the batch and the queries
        options = {"attn_mask": leaves[3].expand(3, 6, 6)}
    exact = scaled_dot_product_attention(*leaves[:3], **options)
    expected = torch.autograd.grad(exact.square().sum(), leaves)
    with Emulate("bf16"):
        out = scaled_dot_product_attention(*leaves[:3], **options)
        got = torch.autograd.grad(out.square().sum(), leaves)
    assert representable(out.detach(), "bf16")
    assert torch.allclose(out.float(), exact, atol=2e-2)
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() < 3e-2 * b.norm()
    assert all(representable(a, "bf16") for a in got[:3])


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32", "fp8"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(8, 6), (5, 8)),
        (lambda: nn.Linear(8, 6, bias=False), (2, 5, 8)),
        (lambda: nn.Conv2d(4, 6, 3), (2, 4, 7, 7)),
        (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 7, 7)),
        (lambda: nn.LSTM(8, 16), (5, 2, 8)),
        (lambda: nn.GRU(8, 16), (5, 2, 8)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
        (lambda: _Einsum(), (5, 8)),
    ],
    ids=["linear", "linear without bias", "conv", "transposed conv", "lstm", "gru", "transformer", "einsum"],
)
def test_inference_mode_rounds_too(make, shape, fmt):
    """Trainers validate in it, and PyTorch then hands over aten.linear whole, not the product that it is made
    of.
    """
    torch.manual_seed(0)
    layer, x = make().eval(), torch.randn(shape)
    with torch.inference_mode(), Emulate(fmt):
        inferred = _first(layer(x))
    with torch.no_grad(), Emulate(fmt):
        expected = _first(layer(x))
    with torch.inference_mode():
        plain = _first(layer(x))
    error = (expected - plain).norm()
    assert error > 0
    # a GRU's first product is another sum in inference mode
    assert (inferred - expected).norm() < 0.05 * error


class _Einsum(nn.Module):
    def forward(self, x):
        return torch.einsum("ik,jk->ij", x, x)


def _first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("has_bf16", [True, False])
def test_what_is_emulated_on_a_cpu(monkeypatch, has_bf16):
    monkeypatch.setattr(modes, "cpu_has_bf16", lambda: has_bf16)
    wishes = {
        name: [emulated(mode, CPU, wish) for wish in ("auto", "always")] for name, mode in MODES.items()
    }
    brain, exact = [not has_bf16, True], [False, False]
    assert wishes == {name: [True, True] for name in ("tf32", "amp", "fp16_true", "fp8", "o1", "o2",
    "o3")} | {
        "amp_bf16": brain, "bf16_true": brain, "fp32": exact, "o0": exact,
    }  # fmt: skip
    assert not emulated(MODES["amp"], CPU, "never")
    assert not emulated(MODES["amp_bf16"], CPU, "never")
    with pytest.raises(UserError, match=r"precision.emulate=never: this CPU has no TF32"):
        emulated(MODES["tf32"], CPU, "never")


@pytest.mark.parametrize(
    ("mode", "emulate", "value"), [("fp32", False, "ieee"), ("tf32", False, "tf32"), ("tf32", True, "ieee")]
)
def test_switches_are_set_and_put_back(mode, emulate, value):
    matmul = torch.backends.cuda.matmul
    before = [switch.fp32_precision for switch in SWITCHES]
    reduced = matmul.allow_fp16_reduced_precision_reduction
    with float32_matmuls(MODES[mode], emulate=emulate):
        assert [switch.fp32_precision for switch in SWITCHES] == [value] * 3 + ["ieee"] * 3
        # what Lightning and torch.compile read; it raises where the old API and the new one disagree
        assert torch.get_float32_matmul_precision() == ("high" if value == "tf32" else "highest")
        assert torch.backends.cudnn.allow_tf32 is (value == "tf32")
        assert not matmul.allow_fp16_reduced_precision_reduction
    assert [switch.fp32_precision for switch in SWITCHES] == before
    assert matmul.allow_fp16_reduced_precision_reduction == reduced


@pytest.mark.parametrize(
    ("mode", "optimizer", "says", "not_says"),
    [
        ("fp32", "sgd", "lower learning rate", "precision="),
        ("amp", "adamw", "precision=fp32", "precision=o2"),
        ("fp16_true", "sgd", "precision=fp32", "precision=o2"),
        ("fp16_true", "adamw", "precision=o2", "precision=fp32"),
    ],
)
def test_what_to_try_when_the_loss_is_no_number(mode, optimizer, says, not_says):
    line = remedy(MODES[mode], optimizer)
    assert says in line
    assert not_says not in line
