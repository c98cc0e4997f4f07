"""The LSTM against the worked example of ../shared/worked_examples.md, and what padding, tying and directions mean."""

import pytest
import torch
from torch import nn

from mpx.errors import UserError
from mpx.models import build
from mpx.models.tokens import masked_mean

# Rows in PyTorch's order i, f, g (the example's a), o.
W = torch.tensor([[0.95, 0.8], [0.7, 0.45], [0.45, 0.25], [0.6, 0.4]], dtype=torch.float64)
U = torch.tensor([[0.8], [0.1], [0.15], [0.25]], dtype=torch.float64)
B = torch.tensor([0.65, 0.15, 0.2, 0.1], dtype=torch.float64)
X = torch.tensor([[[1.0, 2.0], [0.5, 3.0]]], dtype=torch.float64, requires_grad=True)
TARGETS = torch.tensor([[[0.5], [1.25]]], dtype=torch.float64)
PRINTED = {"rtol": 0, "atol": 2.5e-5}  # five digits, worked out from factors that were themselves truncated to five


@pytest.fixture
def cell(cfg, spec):
    """The nn.LSTM inside mpx's model, one unit over two inputs: an image of two rows and two columns."""
    small = type(spec("digits"))("image", (1, 2, 2), 2)
    lstm = build(cfg("lstm", hidden_size=1, num_layers=1), small).double().lstm
    with torch.no_grad():
        for name, value in {"weight_ih_l0": W, "weight_hh_l0": U, "bias_ih_l0": B, "bias_hh_l0": torch.zeros(4)}.items():
            getattr(lstm, name).copy_(value)
    return lstm


def test_worked_example_forward(cell):
    outputs, (_, state) = cell(X)
    torch.testing.assert_close(outputs.flatten(), torch.tensor([0.53631, 0.77197], dtype=torch.float64), **PRINTED)
    torch.testing.assert_close(state.flatten(), torch.tensor([1.5176], dtype=torch.float64), rtol=0, atol=1.01e-4)


def test_worked_example_gradients_and_step(cell):
    X.grad = None
    outputs, _ = cell(X)
    (0.5 * (outputs - TARGETS).square().sum()).backward()
    expected = {
        "weight_ih_l0": [[-0.00221, -0.00666], [-0.00316, -0.01893], [-0.02672, -0.0922], [-0.02593, -0.16262]],
        "weight_hh_l0": [[-0.00060], [-0.00338], [-0.01039], [-0.02970]],
        "bias_ih_l0": [-0.00277, -0.00631, -0.03641, -0.05362],
    }
    for name, gradient in expected.items():
        torch.testing.assert_close(getattr(cell, name).grad, torch.tensor(gradient, dtype=torch.float64), **PRINTED)
    torch.testing.assert_close(X.grad[0], torch.tensor([[-0.00817, -0.00487], [-0.04743, -0.03073]], dtype=torch.float64), **PRINTED)
    with torch.no_grad():
        stepped = cell.weight_ih_l0 - 0.1 * cell.weight_ih_l0.grad
    after = [[0.95022, 0.80067], [0.70031, 0.45189], [0.45267, 0.25922], [0.60259, 0.41626]]
    torch.testing.assert_close(stepped, torch.tensor(after, dtype=torch.float64), **PRINTED)


def test_an_image_is_read_row_by_row(cfg, spec):
    model = build(cfg("lstm", dropout=0.0, hidden_size=16), spec("cifar10"))
    image = torch.randn(1, 3, 32, 32)
    rows = torch.stack([torch.stack([image[0, :, h, w] for w in range(32)]).flatten() for h in range(32)])  # [32, 96]
    outputs, _ = model.lstm(rows[None])
    torch.testing.assert_close(model(image), model.classifier(outputs.mean(1)))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_of_a_text(bidirectional, cfg, spec):
    model = build(cfg("lstm", hidden_size=16, bidirectional=bidirectional), spec("text")).eval()
    padded = torch.tensor([[5, 6, 7] + [0] * 13])
    if bidirectional:
        assert model(padded).shape == (1, 2)
    else:
        torch.testing.assert_close(model(padded), model(padded[:, :3]))


def test_mean_over_real_tokens():
    features, ids = torch.tensor([[[1.0], [3.0], [9.0]], [[1.0], [3.0], [9.0]]]), torch.tensor([[4, 4, 0], [0, 0, 0]])
    assert masked_mean(features, ids, 0).tolist() == [[2.0], [0.0]]
    assert masked_mean(features, ids, None)[0].item() == pytest.approx(13 / 3)


@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights(tie, cfg, spec):
    model = build(cfg("lstm", tie_weights=tie), spec("lm"))
    assert (model.decoder.weight is model.embedding.weight) == tie


def test_untrained_language_model_is_near_uniform(cfg, spec, batch):
    model, ids = build(cfg("lstm"), spec("lm")), batch(spec("lm"))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    assert loss.item() == pytest.approx(torch.tensor(50.0).log().item(), abs=0.1)


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"bidirectional": True}, "lm", "model.bidirectional=true on language modelling data would read the words to predict"),
        ({"embedding_size": 64}, "lm", "model.tie_weights=true needs model.embedding_size=64 to equal model.hidden_size=128"),
        ({"hidden_size": 0}, "digits", "model.hidden_size=0 must be a whole number of at least 1"),
        ({"dropout": 1.0}, "digits", r"model.dropout=1.0 must be a number of at least 0 and below 1"),
    ],
)
def test_wrong_settings(changes, data, message, cfg, spec):
    with pytest.raises(UserError, match=message):
        build(cfg("lstm", **changes), spec(data))


def test_mlp_widths(cfg, spec):
    model = build(cfg("mlp", widths=[32, 16, 8]), spec("digits"))
    assert [layer.out_features for layer in model.layers if isinstance(layer, nn.Linear)] == [32, 16, 8, 10]
    assert sum(1 for _ in build(cfg("mlp", widths=[]), spec("digits")).parameters()) == 2
    with pytest.raises(UserError, match=r"model.widths=\[0\] must be a list, each a whole number of at least 1"):
        build(cfg("mlp", widths=[0]), spec("digits"))
