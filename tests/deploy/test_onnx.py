"""ONNX Runtime on a CPU: FP32 equals PyTorch, INT8 multiplies bytes, and both take batches of every size."""

import pytest
import torch
from torch import nn

from mpx.deploy import onnx


class Convolves(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


@pytest.fixture(scope="module")
def image():
    torch.manual_seed(0)
    model, x = Convolves().eval().requires_grad_(False), torch.randn(33, 3, 8, 8)
    return model, x, onnx.exported(model, x[:2])


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def test_fp32_is_pytorch_for_every_batch_size(image):
    model, x, content = image
    called = onnx.OnnxModel(content)
    for size in (1, 2, 33, 7):
        assert error(called(x[:size]), model(x[:size])) <= 1e-5
    assert onnx.quantised_nodes(content) == []


@pytest.mark.parametrize("static", [True, False])
def test_int8_multiplies_bytes(image, static):
    model, x, content = image
    made = onnx.quantised(content, lambda: iter([x[:16], x[16:]]), static=static)
    called = onnx.OnnxModel(made)
    for size in (1, 33, 7):
        assert error(called(x[:size]), model(x[:size])) <= 0.05
    assert len(onnx.quantised_nodes(made)) == 2


def test_int8_of_texts_by_hand():
    """One scale for each output, one for each batch of activations. A table of embeddings stays FP32, also
    with a row that is larger.
    """
    torch.manual_seed(0)
    embedding, first, second = nn.Embedding(300, 32), nn.Linear(32, 64), nn.Linear(64, 4)
    embedding.weight.data[7] *= 12

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.first, self.second = embedding, first, second

        def forward(self, x):
            return self.second(torch.relu(self.first(self.embedding(x).mean(1))))

    def activations(x):
        low, step = x.min().clamp(max=0), (x.max().clamp(min=0) - x.min().clamp(max=0)) / 255
        zero = (-low / step).round()
        return ((x / step + zero).round().clamp(0, 255) - zero) * step

    def product(x, layer):
        step = layer.weight.abs().amax(1, keepdim=True) / onnx.largest_weight()
        return activations(x) @ ((layer.weight / step).round() * step).T + layer.bias

    model, x = Bag().eval().requires_grad_(False), torch.randint(0, 300, (64, 12))
    called = onnx.OnnxModel(onnx.quantised(onnx.exported(model, x[:2]), list, static=False))
    by_hand = product(torch.relu(product(embedding(x).mean(1), first)), second)
    assert error(called(x), by_hand) <= 0.003
    assert error(by_hand, model(x)) > 0.006


class Recurrent(nn.Module):
    """Texts or, with rows of pixels, images. Its LSTM is larger than what the exporter computes at once."""

    def __init__(self, vocab_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 48) if vocab_size else nn.Identity()
        self.lstm, self.out = nn.LSTM(48, 48, batch_first=True, bidirectional=True), nn.Linear(96, 4)

    def forward(self, x):
        return self.out(self.lstm(self.embedding(x))[0].mean(1))


@pytest.mark.parametrize("static", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_int8_of_an_lstm(static):
    """Of texts it multiplies bytes; of images it keeps the FP32 weights that it was trained with."""
    import numpy as np
    from onnx import load_model_from_string, numpy_helper

    torch.manual_seed(0)
    model = Recurrent(0 if static else 300).eval().requires_grad_(False)
    x = torch.randn(64, 12, 48) if static else torch.randint(0, 300, (64, 12))
    content = onnx.exported(model, x[:2])
    made = onnx.quantised(content, lambda: [x], static=static)
    assert error(onnx.OnnxModel(made)(x), model(x)) <= 0.05
    assert len(onnx.quantised_nodes(made)) == (1 if static else 2)
    graph = load_model_from_string(made).graph
    (lstm,) = [node for node in graph.node if "LSTM" in node.op_type]
    weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    recurrent = weights[lstm.input[2]]  # [directions, gates · hidden, hidden], of bytes transposed
    assert recurrent.dtype == (np.float32 if static else np.int8)
    if static:
        trained = torch.stack([model.lstm.weight_hh_l0, model.lstm.weight_hh_l0_reverse])
        assert np.array_equal(np.sort(recurrent, axis=None), np.sort(trained.numpy(), axis=None))
