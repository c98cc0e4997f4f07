"""Whoever calls mpx.data.load or mpx.models.build gets the rules of the command line, in the same words."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import mpx.data
from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.models import build
from mpx.settings import check
from mpx.train import CONF

SPECS = {"image": Spec("image", (1, 8, 8), 10), "lm": Spec("lm", (12,), 50, vocab_size=50)}


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides))


def message(call, *given) -> str:
    with pytest.raises(UserError) as caught:
        call(*given)
    return str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.crop=11"],
        ["data.mean=[0.1,0.2]"],
        ["data=synthetic", "model=mlp", "data.shape=[8,8]"],
        ["data=synthetic", "model=mlp", "data.kind=text", "data.shape=[8]", "data.vocab_size=1001"],
        ["data=mnist", "data.root=nowhere", "data.download=false"],
        ["data=text_file", "model=lstm", "data.path=nowhere", "data.tokenizer=wordpiece"],
        ["data=text_file", "model=lstm", "data.path=nowhere"],
        ["data=text_csv", "model=lstm"],
        ["data=image_folder", "data.path=nowhere", "data.resize=100"],
    ],
    ids=" ".join,
)
def test_data(overrides):
    cfg = composed(*overrides)
    said = message(check, cfg, overrides)
    assert said.startswith("data.")
    assert message(mpx.data.load, cfg.data) == said


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (["model=bert_small", "model.num_heads=7"], "image"),
        (["model=bert_small", "model.pool=last"], "image"),
        (
            ["model=lstm", "data=synthetic", "data.kind=lm", "data.shape=[8]", "model.bidirectional=true"],
            "lm",
        ),
        (["model=lstm", "data=synthetic", "data.kind=lm", "data.shape=[8]", "model.embedding_size=32"], "lm"),
        (["model=timm"], "image"),
        (["model=custom"], "image"),
        (["model=resnet18", "model.stem=tiny"], "image"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_models(overrides, kind):
    cfg = composed(*overrides)
    assert message(build, cfg.model, SPECS[kind]) == message(check, cfg, overrides)


def test_a_model_that_does_not_take_the_data():
    """A library caller's spec has no name of the data set."""
    cfg = composed("model=resnet18", "data=synthetic", "data.kind=lm", "data.shape=[8]")
    said = message(check, cfg)
    assert said.startswith("model=resnet18 with data=synthetic: this model takes images")
    assert message(build, cfg.model, SPECS["lm"]) == said.replace(" with data=synthetic", "")


def test_any_value_may_be_an_argument_of_ones_own_network():
    """As library callers give them: OmegaConf holds no such values."""
    plain = OmegaConf.to_container(composed("model=custom", "model._target_=torch.nn.Flatten").model)
    with pytest.raises(
        UserError,
        match=r"^model\._target_=torch\.nn\.Flatten: got an unexpected keyword "
        r"argument 'dtype'",
    ):
        build(plain | {"kwargs": {"dtype": object()}}, SPECS["image"])
