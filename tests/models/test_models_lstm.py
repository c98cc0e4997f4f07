"""What padding, tying and directions of the LSTM mean."""

import pytest
import torch
from torch import nn

from mpx.models import build


def test_an_image_is_read_row_by_row(cfg, spec):
    model = build(cfg("lstm", dropout=0.0, hidden_size=16), spec("cifar10"))
    image = torch.randn(1, 3, 32, 32)
    # [32, 96]
    rows = torch.stack([torch.stack([image[0, :, h, w] for w in range(32)]).flatten() for h in range(32)])
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


@pytest.mark.parametrize("tie", [True, False])
def test_rows_beyond_the_vocabulary_have_no_part(tie, cfg, spec, batch):
    model, ids = build(cfg("lstm", tie_weights=tie), spec("lm")), batch(spec("lm"))
    logits = model.eval()(ids)
    assert (model.decoder.out_features, logits.shape[-1]) == (64, 50)
    nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    unused = model.decoder.weight.grad[50:], model.decoder.bias.grad[50:], model.embedding.weight.grad[50:]
    assert not any(gradient.any() for gradient in unused)
    with torch.no_grad():
        model.decoder.weight[50:] = 9
    assert torch.equal(model(ids), logits)
