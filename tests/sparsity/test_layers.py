"""Which layers are pruned, and the reason for every other one."""

import pytest
import torch
from torch import nn

from mpx.deploy.kernels import sparse_kernels
from mpx.sparsity.kernels import sparse_kernel, unsupported_layer
from mpx.sparsity.layers import Rules, Weight, weights
from mpx.sparsity.patterns import NofM, Unstructured
from mpx.sparsity.tiles import Tiles


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2)
        self.gru = nn.GRU(16, 16)
        self.attention = nn.MultiheadAttention(16, 2)
        self.conv = nn.Conv1d(16, 8, 3)
        self.grouped = nn.Conv2d(32, 8, 3, groups=2)
        self.odd = nn.Linear(6, 8)
        self.small = nn.Linear(16, 4)
        self.decoder = nn.Linear(16, 32)
        self.decoder.weight = self.embedding.weight


def reasons(pattern=NofM(2, 4), **rules):  # noqa: B008
    return {w.name: w.reason for w in weights(Net(), pattern, Rules(**rules))}


def pruned(**rules):
    return [name for name, reason in reasons(**rules).items() if reason is None]


RECURRENT = [
    "lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.weight_ih_l1", "lstm.weight_hh_l1", "gru.weight_ih_l0",
    "gru.weight_hh_l0",
]  # fmt: skip
ATTENTION = ["attention.in_proj_weight", "attention.out_proj.weight"]


def test_layers_and_reasons():
    found = reasons()
    assert pruned() == [*RECURRENT, *ATTENTION, "conv.weight", "grouped.weight"]
    assert found["odd.weight"] == "8×6 is not a sparse Tensor Core shape (rows % 8, columns % 16)"
    assert found["small.weight"].startswith("4×16 is not a sparse Tensor Core shape")
    assert found["decoder.weight"] == "shared with an embedding"


def test_types_with_the_attentions_output_projection():
    assert pruned(types=("MultiheadAttention",)) == ATTENTION
    assert reasons(types=("Linear",))["conv.weight"] == "Conv1d is not in sparsity.types"
    assert pruned(types=("LSTM", "GRU")) == RECURRENT


def test_layers_that_no_pattern_knows_say_so():
    model = nn.ModuleDict(
        {
            "up": nn.ConvTranspose2d(16, 16, 2),
            "rnn": nn.RNN(16, 16),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)),
            "words": nn.Embedding(16, 16),
            "scale": nn.LayerNorm(16),
        }
    )
    computed = "the layer's weight is computed from it (torch.nn.utils.parametrize)"
    assert {w.name: w.reason for w in weights(model, NofM(2, 4), Rules())} == {
        "up.weight": "ConvTranspose2d is not a type of layer that mpx prunes",
        "rnn.weight_ih_l0": "RNN is not a type of layer that mpx prunes",
        "rnn.weight_hh_l0": "RNN is not a type of layer that mpx prunes",
        "normed.parametrizations.weight.original0": computed,
        "normed.parametrizations.weight.original1": computed,
    }


def kernel(layer, pattern=NofM(2, 4), fmt="bf16", device="cpu", name="w"):  # noqa: B008
    weight = Weight(name, type(layer).__name__, next(layer.parameters()), None, "", layer)
    return sparse_kernel(weight, pattern, fmt, torch.device(device))


def test_sparse_kernels_say_why_there_is_none(monkeypatch):
    square, small = nn.Linear(16, 16), nn.Linear(32, 16)
    assert kernel(square) == (None, "needs a CUDA device")
    assert kernel(square, Unstructured(0.5)) == (None, "no hardware is faster with unstructured")
    assert kernel(square, NofM(4, 8)) == (None, "no hardware is faster with 4of8")
    assert kernel(nn.Conv1d(16, 16, 3)) == (None, "no kernel for Conv1d")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: True)
    assert kernel(small, device="cuda") == ("cuSPARSELt", None)
    assert kernel(small, Tiles(), device="cuda") == ("cuSPARSELt", None)
    assert kernel(small, fmt="fp32", device="cuda") == (None, "cuSPARSELt has no fp32")
    assert kernel(nn.Linear(32, 8), device="cuda") == (None, "8×32: bf16 needs multiples of 16")
    assert kernel(small, fmt="fp8_e4m3", device="cuda") == (
        None,
        "PyTorch's 2:4 products of FP8 take no scale",
    )
    assert kernel(nn.MultiheadAttention(32, 2), device="cuda") == (
        None,
        "MultiheadAttention multiplies its weights itself",
    )
    in_one_call = "cuDNN computes LSTM in one call, which takes dense weights only"
    assert kernel(nn.LSTM(32, 32), device="cuda", name="lstm.weight_ih_l0") == (None, in_one_call)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "V100")
    assert kernel(small, device="cuda") == (None, "V100 has no sparse Tensor Cores")


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "fp16", "bf16", "fp8"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(32, 16), nn.Linear(32, 24), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Conv2d(16, 24, 3),
        nn.Conv2d(32, 32, 3, groups=2), nn.Conv2d(16, 16, 3, dilation=2), nn.Conv2d(3, 16, 7), nn.LSTM(16, 16), nn.Conv3d(16, 16, 3),
    ],
    ids=str,
)  # fmt: skip
def test_the_coverage_says_what_deploy_serves(monkeypatch, layer, fmt):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: True)
    cuda = torch.device("cuda")
    served = unsupported_layer(layer) is None
    if served:
        with torch.no_grad():
            layer.weight[:, 2::4] = layer.weight[:, 3::4] = 0
        served = bool(sparse_kernels(layer, fmt, cuda)[0])
    assert (kernel(layer, fmt={"fp8": "fp8_e4m3"}.get(fmt, fmt), device="cuda")[0] is not None) == served, (
        layer
    )
