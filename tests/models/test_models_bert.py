"""BERT: plain names, masked padding, patches, pretrained folders."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, DistilBertConfig, DistilBertModel

from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.models import build
from mpx.models.bert import patch_size

SMALL = {"num_layers": 2, "hidden_size": 32, "num_heads": 2}
UNTRAINED = {"text": [], "digits": ["bert.embeddings.word_embeddings.weight"]}


def plain_bert(**settings) -> BertForSequenceClassification:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return BertForSequenceClassification(
        BertConfig(**{"vocab_size": 50, "max_position_embeddings": 16} | sizes | settings)
    )


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_gradients_are_those_of_the_plain_model(pool, cfg, spec, batch):
    """Although tokens that nobody reads are left out of the last layer."""
    model, ids = build(cfg("bert_small", pool=pool, **SMALL), spec("text")).eval(), batch(spec("text"))
    plain = plain_bert().eval()
    plain.load_state_dict(model.state_dict(), strict=True)
    if pool == "mean":
        states = plain.bert(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        seen = (ids != 0)[..., None]
        logits = plain.classifier(plain.bert.pooler(((states * seen).sum(1) / seen.sum(1))[:, None]))
    else:
        logits = plain(input_ids=ids, attention_mask=(ids != 0).long()).logits
    logits.square().sum().backward()
    model(ids).square().sum().backward()
    expected = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_padding_does_not_matter(pool, cfg, spec):
    model = build(cfg("bert_small", pool=pool, **SMALL), spec("text")).eval()
    ids = torch.tensor([[5, 6, 7] + [0] * 13])
    torch.testing.assert_close(model(ids), model(ids[:, :3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [((1, 8, 8), 1), ((1, 28, 28), 4), ((3, 32, 32), 4), ((3, 224, 224), 28), ((1, 97, 97), 97)],
)
def test_smallest_patch_of_at_most_64_tokens(shape, patch):
    assert patch_size("auto", Spec("image", shape, 10)) == patch


def test_tokens_are_patches(cfg, spec):
    model = build(cfg("bert_small", **SMALL), spec("cifar10"))
    seen = []
    model.patch_embedding.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    image = torch.randn(2, 3, 32, 32)
    model(image)
    assert seen[0].shape == (2, 64, 48)
    torch.testing.assert_close(seen[0][:, 9], image[:, :, 4:8, 4:8].flatten(1))  # second row, second column


def test_pretrained_folder(cfg, spec, tmp_path):
    saved = plain_bert(num_labels=5)
    saved.save_pretrained(tmp_path)
    for data in ("text", "digits"):
        shape = spec(data) if data == "text" else Spec("image", (1, 4, 4), 10)
        model = build(cfg("bert_small", pretrained=str(tmp_path)), shape)
        assert torch.equal(
            model.bert.encoder.layer[1].output.dense.weight, saved.bert.encoder.layer[1].output.dense.weight
        )
        assert model.classifier.out_features == shape.classes
        assert all(layer.training for layer in model.modules())
        assert [name for name, p in model.named_parameters() if not p.requires_grad] == UNTRAINED[data]
    with pytest.raises(UserError, match="knows 50 token ids and the data set uses 51"):
        build(cfg("bert_small", pretrained=str(tmp_path)), Spec("text", (16,), 2, vocab_size=51, pad_id=0))
    with pytest.raises(UserError, match="takes at most 16 tokens and the data set has 17"):
        build(cfg("bert_small", pretrained=str(tmp_path)), Spec("text", (17,), 2, vocab_size=50, pad_id=0))


def test_pretrained_mistakes(cfg, spec, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="is a folder without a usable model"):
        build(cfg("bert_small", pretrained=str(tmp_path)), spec("text"))
    DistilBertModel(
        DistilBertConfig(vocab_size=50, dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    ).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"is not a BERT: it has no .* Use model=hf"):
        build(cfg("bert_small", pretrained=str(tmp_path)), spec("text"))
    monkeypatch.setattr("mpx.models.pretrained.hub_answers", lambda: False)
    with pytest.raises(
        UserError,
        match=r"model.pretrained=no/such is neither a folder nor in the local "
        r"cache, and .* cannot be reached",
    ):
        build(cfg("bert_small", pretrained="no/such"), spec("text"))
