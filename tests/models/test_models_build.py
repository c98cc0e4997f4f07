"""Every model file builds for every kind of data that it says it takes, and trains a step."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mpx.errors import UserError
from mpx.models import FAMILIES, build
from mpx.settings.fields import FIELDS
from mpx.settings.model import KINDS

CONF = Path(__file__).parents[2] / "conf" / "model"
SMALL = {"num_layers": 1, "hidden_size": 32, "num_heads": 2}
CHANGES = {  # what a choice needs to be given, or to be quick
    "bert_small": SMALL,
    "bert_base": SMALL,
    "torchvision": {"name": "mobilenet_v3_small"},
    "timm": {"name": "resnet10t"},
    "custom": {"_target_": "helpers_for_models.Net"},
}
NAMES_OF_HF = {
    "image": {
        "name": "vit",
        "kwargs": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4},
    },
    "text": {"name": "distilbert", "kwargs": {"dim": 32, "n_layers": 1, "n_heads": 2}},
    "lm": {"name": "gpt2", "kwargs": {"n_embd": 32, "n_layer": 1, "n_head": 2}},
}
CASES = [
    (path.stem, data) for path in sorted(CONF.glob("*.yaml")) for data in ("digits", "cifar10", "text", "lm")
]


@pytest.fixture(autouse=True)
def helpers_importable(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(("choice", "data"), CASES)
def test_builds_and_learns(choice, data, cfg, spec, batch):
    spec = spec(data)
    config = cfg(choice, **(NAMES_OF_HF[spec.kind] if choice == "hf" else CHANGES.get(choice, {})))
    if spec.kind not in config.inputs:
        with pytest.raises(
            UserError, match=f"^model=.*: this model takes .*, the data set is {KINDS[spec.kind]}"
        ):
            build(config, spec)
        return
    model = build(config, spec)
    assert model.training
    logits = model(batch(spec))
    assert logits.shape == ((3, 12, 50) if spec.kind == "lm" else (3, spec.classes))
    assert logits.dtype == torch.float32
    logits.square().mean().backward()
    # Distributed training waits for the gradient of every parameter that asks for one.
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_says_what_others_read(path, cfg):
    config = cfg(path.stem)
    assert config.family in FAMILIES
    assert "name" in config.keys()  # noqa: SIM118 (a missing value counts as absent otherwise)
    assert set(config.inputs) <= {"image", "text", "lm"}
    assert set(config.lr) == {"sgd", "adamw"}
    fields = [
        line
        for line in path.read_text().splitlines()
        if line[:1].isalpha() and not line.startswith(("defaults", "name"))
    ]
    assert all("  # " in line for line in fields), "every field has its reason in a comment"


def test_same_seed_same_weights(cfg, spec):
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build(cfg("resnet20"), spec("digits")).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_every_family_is_a_setting():
    assert all(FIELDS["model.family"].fits(family) for family in FAMILIES)
