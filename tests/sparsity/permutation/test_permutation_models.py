"""Whole models compute what they computed before, every weight that can gain is permuted, and the others say
why not.
"""

import pytest
import torch
from helpers_for_permutation import IMAGE, LM, TEXT, assert_same_function, batch_of, named, reasons, shaken
from torch import nn
from torchvision.models import mobilenet_v3_small, resnet50

SMALL_BERT = {"num_layers": 2, "hidden_size": 64, "num_heads": 4}
MODEL_INPUT = "its input channels stay: it comes from the model's input"

MODELS = {
    "resnet20": (lambda: named("resnet20", IMAGE), IMAGE, {}),
    "resnet50": (lambda: shaken(resnet50(num_classes=10)), IMAGE, {}),
    "mlp on images": (lambda: named("mlp", IMAGE, widths=[64, 48]), IMAGE, {"layers.0.weight": MODEL_INPUT}),
    "mlp on texts": (lambda: named("mlp", TEXT, widths=[64]), TEXT, {}),
    "bert on texts": (lambda: named("bert_small", TEXT, **SMALL_BERT), TEXT, {}),
    "bert on images": (
        lambda: named("bert_small", IMAGE, **SMALL_BERT),
        IMAGE,
        {"patch_embedding.weight": MODEL_INPUT},
    ),
    "lstm, 2 layers": (lambda: named("lstm", TEXT, hidden_size=32, num_layers=2), TEXT, {}),
    "lstm, both ways": (
        lambda: named("lstm", TEXT, hidden_size=32, num_layers=2, bidirectional=True),
        TEXT,
        {},
    ),
    "lstm on images": (
        lambda: named("lstm", IMAGE, hidden_size=32),
        IMAGE,
        {"lstm.weight_ih_l0": MODEL_INPUT},
    ),
    "lstm, tied decoder": (lambda: named("lstm", LM, hidden_size=32), LM, {}),
    "mobilenet": (lambda: shaken(mobilenet_v3_small(num_classes=10)), IMAGE, {}),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("resnet50", "mobilenet") else ())
        for name in MODELS
    ],
)
def test_function_is_preserved(name):
    make, spec, stay = MODELS[name]
    report = assert_same_function(make(), batch_of(spec), exhaustive=True)
    assert reasons(report) == stay
    assert report.kept_after > report.kept_before + 0.001


@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_projection_of_torchs_own_attention(batch_first):
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=batch_first)
    model = shaken(nn.Sequential(nn.Linear(12, 32), layer, nn.Linear(32, 5)))
    report = assert_same_function(model, torch.randn(3, 7, 12))
    assert reasons(report) == {"0.weight": MODEL_INPUT}
