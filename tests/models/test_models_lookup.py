"""torchvision, timm, transformers and the user's own: plain parameters, and one line for every mistake."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from omegaconf import OmegaConf
from transformers import FunnelForSequenceClassification, GPT2Config, GPT2LMHeadModel

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


def test_hf_that_classifies_by_the_last_token_refuses_padding(cfg, spec):
    """An XLNet that classifies by its first token or each token has no last token to read."""
    kwargs = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    with pytest.raises(UserError, match=r"^model.name=xlnet classifies a text by its last token, which is"):
        build(cfg("hf", name="xlnet", kwargs=kwargs), spec("text"))
    build(cfg("hf", name="xlnet", kwargs=kwargs | {"summary_type": "first"}), spec("text"))
    build(cfg("hf", name="xlnet", kwargs=kwargs), replace(spec("text"), task="tokens"))


def test_hf_folder(cfg, spec, tmp_path):
    saved = GPT2LMHeadModel(GPT2Config(vocab_size=50, **TINY_GPT2))
    saved.save_pretrained(tmp_path)
    model = build(cfg("hf", name=str(tmp_path)), spec("lm"))
    assert torch.equal(model.transformer.wte.weight, saved.transformer.wte.weight)
    assert all(layer.training for layer in model.modules())  # dropout too


def test_frozen_layers_stay_frozen(cfg, spec):
    model = build(cfg("custom", _target_=f"{HELPERS}.Frozen"), spec("digits"))
    assert (model.training, model.conv.training, model.norm.training) == (True, True, False)


# choice, its changes | data | the line
TABLE = r"""
torchvision name=resnet19 | digits | model.name=resnet19 is not one of .* Did you mean resnet1\d+\?
torchvision name=vgg11 | digits | cannot take image data of shape 1x8x8 .* enlarge them, as data.image_size=32 or 224
torchvision name=resnet18 kwargs.grups=2 | digits | model.kwargs does not suit resnet18: .*keyword argument 'grups'
torchvision name=mobilenet_v3_small kwargs.dropuot=0.5 | cifar10 | model.kwargs.dropuot is not an argument of mobilenet_v3_small. Did you mean dropout\?
timm name=convnext_ato | digits | is not one of timm's \d+ networks. Did you mean convnext_atto\?
hf name=distilbert kwargs.n_lyers=1 | text | model.kwargs.n_lyers is not a setting .* Did you mean n_layers\?
hf name=distilbert | lm | model.name=distilbert model.kwargs={} cannot be built for lm data: Unrecognized configuration
hf name=bert kwargs.num_hidden_layers=1 | lm | must be causal; .*model.kwargs.is_decoder=true
hf name=distilber | text | is neither a folder nor in the local cache.* Did you mean distilbert\?
custom _target_=no_such.Net | digits | model._target_=no_such.Net cannot be built in .*No module named
custom _target_=helpers_for_models.not_a_network | digits | returned a int; it must return a torch.nn.Module
custom _target_=helpers_for_models.NeedsMore | digits | missing a required argument: 'colour'.*as \+model.kwargs.NAME=VALUE
custom _target_=helpers_for_models.WrongClasses | digits | of shape \[1, 11\] .* expected float logits of shape \[1, 10\]
custom _target_=helpers_for_models.Peeks | lm | must be causal
"""
MISTAKES = [line.split(" | ") for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("words", "data", "message"), MISTAKES, ids=[words for words, *_ in MISTAKES])
def test_mistakes(words, data, message, cfg, spec, monkeypatch):
    monkeypatch.setattr("mpx.models.pretrained.hub_answers", lambda: False)
    choice, *changes = words.split()
    with pytest.raises(UserError, match=message) as caught:
        build(cfg(choice, **OmegaConf.to_container(OmegaConf.from_dotlist(changes))), spec(data))
    assert "\n" not in str(caught.value)
