"""torchvision, timm, transformers and the user's own: plain parameters, and one line for every mistake."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from transformers import FunnelForSequenceClassification, GPT2Config, GPT2LMHeadModel

from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.models import build
from mpx.models.hf import LogitsOnly

TINY_GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2}
HELPERS = "helpers_for_models"


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_plain_parameters(cfg, spec):
    colour, lm = spec("cifar10"), spec("lm")
    model = build(cfg("torchvision", name="squeezenet1_1", kwargs={"dropout": 0.2}), colour)
    torchvision.models.squeezenet1_1(num_classes=10).load_state_dict(model.state_dict(), strict=True)
    model = build(cfg("timm", name="resnet10t"), colour)
    timm.create_model("resnet10t", num_classes=10).load_state_dict(model.state_dict(), strict=True)
    model = build(cfg("hf", name="gpt2", kwargs=TINY_GPT2), lm)
    GPT2LMHeadModel(GPT2Config(vocab_size=50, **TINY_GPT2)).load_state_dict(model.state_dict(), strict=True)


def test_shape_follows_the_data(cfg, spec):
    assert build(cfg("torchvision", name="squeezenet1_1"), spec("cifar10")).features[0].in_channels == 3
    grey = type(spec("digits"))("image", (1, 32, 32), 7)
    assert build(cfg("torchvision", name="squeezenet1_1"), grey).features[0].in_channels == 1
    assert build(
        cfg("timm", name="vit_tiny_patch16_224", kwargs={"depth": 1}), grey
    ).patch_embed.img_size == (32, 32)
    assert (
        build(
            cfg(
                "hf", name="vit", kwargs={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
            ),
            grey,
        ).config.image_size
        == 32
    )


def test_hf_masks_padding(cfg, spec):
    model = build(
        cfg("hf", name="distilbert", kwargs={"dim": 32, "n_layers": 1, "n_heads": 2}), spec("text")
    ).eval()
    ids = torch.tensor([[5, 6, 7] + [0] * 13])
    torch.testing.assert_close(model(ids), model(ids[:, :3]), rtol=1e-4, atol=1e-5)


def test_hf_is_the_librarys_class_with_another_forward(cfg, spec, tmp_path):
    """Also where a folder says which network it is, and where the library has several for one
    configuration.
    """
    tiny = {"block_sizes": [1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16}
    model = build(cfg("hf", name="funnel", kwargs=tiny), spec("text"))
    assert type(model).__mro__[2] is FunnelForSequenceClassification
    assert type(model).forward is LogitsOnly.forward
    GPT2LMHeadModel(GPT2Config(vocab_size=50, **TINY_GPT2)).save_pretrained(tmp_path)
    assert type(build(cfg("hf", name=str(tmp_path)), spec("lm"))).__mro__[1:3] == (
        LogitsOnly,
        GPT2LMHeadModel,
    )


TINY_BERT = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
TINY = {
    "gpt2": TINY_GPT2, "bert": TINY_BERT, "roberta": TINY_BERT, "distilbert": {"dim": 32, "n_layers": 1,
    "n_heads": 2, "hidden_dim": 32},
    "qwen2": TINY_BERT | {"num_key_value_heads": 2}, "xlnet": {"d_model": 16, "n_layer": 1, "n_head": 2,
    "d_inner": 16},
    "mt5": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 32},
}  # fmt: skip
LEFT = Spec("text", (12,), 3, vocab_size=50, pad_id=0, padded=True, left=True)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("gpt2", "classification"),
        ("qwen2", "classification"),
        ("xlnet", "classification"),
        ("bert", "tokens"),
        ("roberta", "tokens"),
    ],
)
def test_hf_with_padding_on_the_left_computes_what_it_does_of_the_text_alone(cfg, name, task):
    """Also GPT-2 and BERT, whose positions transformers would count from the padding on."""
    kwargs = cfg("hf", name=name, kwargs=TINY[name])
    torch.manual_seed(0)
    ours = build(kwargs, replace(LEFT, task=task)).eval()
    plain = build(kwargs, replace(LEFT, task=task, padded=False, left=False)).eval()
    plain.load_state_dict(ours.state_dict())
    x = torch.randint(1, 50, (3, 12))
    for row, fill in enumerate(fills := (0, 3, 8)):
        x[row, :fill] = 0
    with torch.no_grad():
        for logits, ids, fill in zip(ours(x), x, fills, strict=True):
            alone = plain(ids[None, fill:])[0]
            torch.testing.assert_close(
                logits[fill:] if task == "tokens" else logits, alone, rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mt5"])
def test_hf_that_classifies_by_the_first_token_refuses_padding_on_the_left(cfg, name):
    """So does mt5, which takes no text without its end."""
    with pytest.raises(
        UserError,
        match="^the texts are filled up on the left, which changes what "
        rf"model.name={name} computes. Fill",
    ):
        build(cfg("hf", name=name, kwargs=TINY[name]), LEFT)
    build(cfg("hf", name=name, kwargs=TINY[name]), replace(LEFT, left=False))


def test_hf_that_classifies_by_the_last_token_refuses_padding_on_the_right(cfg):
    """An XLNet that classifies by its first token computes the same of the text alone, and one for each token
    does.
    """
    right = replace(LEFT, left=False)
    with pytest.raises(
        UserError,
        match=r"filled up on the right, which changes what model.name=xlnet computes. Fill them "
        r"up on the left: .*'left'",
    ):
        build(cfg("hf", name="xlnet", kwargs=TINY["xlnet"]), right)
    build(cfg("hf", name="xlnet", kwargs=TINY["xlnet"] | {"summary_type": "first"}), right)
    build(cfg("hf", name="xlnet", kwargs=TINY["xlnet"]), replace(right, task="tokens"))


def test_hf_folder(cfg, spec, tmp_path):
    saved = GPT2LMHeadModel(GPT2Config(vocab_size=50, **TINY_GPT2))
    saved.save_pretrained(tmp_path)
    model = build(cfg("hf", name=str(tmp_path)), spec("lm"))
    assert torch.equal(model.transformer.wte.weight, saved.transformer.wte.weight)
    assert all(layer.training for layer in model.modules())  # dropout too


def test_frozen_layers_stay_frozen(cfg, spec):
    model = build(cfg("custom", _target_=f"{HELPERS}.Frozen"), spec("digits"))
    assert (model.training, model.conv.training, model.norm.training) == (True, True, False)


MISTAKES = [
    (
        "torchvision",
        {"name": "resnet19"},
        "digits",
        r"model.name=resnet19 is not one of .* Did you mean resnet1\d+\?",
    ),
    (
        "torchvision",
        {"name": "vgg11"},
        "digits",
        r"cannot take image data of shape 1x8x8 .* It takes "
        r"larger images: data.image_size=32",
    ),
    (
        "torchvision",
        {"name": "resnet18", "kwargs": {"grups": 2}},
        "digits",
        r"model.kwargs.grups is not an argument of resnet18; allowed: .*groups",
    ),
    (
        "timm",
        {"name": "convnext_ato"},
        "digits",
        r"is not one of timm's \d+ networks. Did you mean "
        r"convnext_atto\?",
    ),
    (
        "hf",
        {"name": "distilbert", "kwargs": {"n_lyers": 1}},
        "text",
        r"model.kwargs.n_lyers is not a "
        r"setting .* Did you mean n_layers\?",
    ),
    ("hf", {"name": "distilbert"}, "lm", "model.name=distilbert has no network for lm data"),
    (
        "hf",
        {"name": "bert", "kwargs": {"num_hidden_layers": 1}},
        "lm",
        "must be causal; .*model.kwargs.is_decoder=true",
    ),
    (
        "hf",
        {"name": "distilber"},
        "text",
        r"is neither a folder nor in the local cache.* Did you mean "
        r"distilbert\?",
    ),
    (
        "custom",
        {"_target_": "no_such.Net"},
        "digits",
        "model._target_=no_such.Net cannot be built in .*No module named",
    ),
    (
        "custom",
        {"_target_": f"{HELPERS}.not_a_network"},
        "digits",
        "returned a int; it must return a torch.nn.Module",
    ),
    (
        "custom",
        {"_target_": f"{HELPERS}.NeedsMore"},
        "digits",
        r"missing a required argument: 'colour'.*as "
        r"\+model.kwargs.NAME=VALUE",
    ),
    (
        "custom",
        {"_target_": f"{HELPERS}.WrongClasses"},
        "digits",
        r"of shape \[1, 11\] .* expected float logits of shape \[1, 10\]",
    ),
    ("custom", {"_target_": f"{HELPERS}.Peeks"}, "lm", "must be causal"),
]


@pytest.mark.parametrize(("choice", "changes", "data", "message"), MISTAKES)
def test_mistakes(choice, changes, data, message, cfg, spec, monkeypatch):
    monkeypatch.setattr("mpx.models.pretrained.hub_answers", lambda: False)
    with pytest.raises(UserError, match=message) as caught:
        build(cfg(choice, **changes), spec(data))
    assert "\n" not in str(caught.value)
