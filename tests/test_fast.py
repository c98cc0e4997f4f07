"""What stands in the way of CUDA graphs and of compiling, as seen from a whole configuration."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from mpx import fast
from mpx.models import build
from mpx.parts import build_parts
from mpx.spec import Spec
from mpx.train import CONF


def decide(*overrides, model=None, steps=20_000, devices=1, cuda=True):
    """As `mpx.fit` asks, on a machine that has, or seems to have, a CUDA device."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", list(overrides))
    parts = build_parts(cfg)
    if cuda:
        parts.device, parts.precision.emulate = torch.device("cuda"), cfg.precision.emulate == "always"
    return fast.decide(cfg, parts, model or nn.Sequential(nn.Conv2d(1, 1, 1)), steps, devices)


def test_a_long_run_of_a_convolutional_network():
    choice = decide()
    assert (choice.cuda_graphs, choice.compile, choice.benchmark) == (True, "default", True)


@pytest.mark.parametrize(
    ("overrides", "devices", "reason"),
    [
        ([], 2, "several devices synchronise within a step"),
        (["trainer.accumulate_grad_batches=2"], 1, "trainer.accumulate_grad_batches is above 1, so that not all batches do the same"),
        (["precision=amp", "precision.emulate=always"], 1, "precision=amp is emulated here, operation by operation"),
        (["sparsity=2of4", "sparsity.recipe=sr_ste"], 1, "sparsity.recipe=sr_ste chooses new masks at every step"),
    ],
)
def test_no_graphs(overrides, devices, reason):
    choice = decide(*overrides, devices=devices)
    assert (choice.cuda_graphs, choice.why["cuda_graphs"]) == (False, reason)


@pytest.mark.parametrize(
    ("overrides", "model", "reason"),
    [
        ([], nn.LSTM(2, 2), "recurrent layers are cuDNN's, not the compiler's"),
        (["precision=o2"], None, "precision=o2 replaces weights or layers as it goes"),
        (["precision=fp8"], None, "precision=fp8 replaces weights or layers as it goes"),
    ],
)
def test_graphs_but_not_compiled(overrides, model, reason):
    choice = decide(*overrides, model=model)
    assert (choice.cuda_graphs, choice.compile, choice.why["compile"]) == (True, "off", reason)


def test_attention_masks_of_other_models():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", ["model=hf", "model.name=distilbert", "+model.kwargs={n_layers:1,dim:32,n_heads:2,hidden_dim:32}"])
    model = build(cfg.model, Spec("text", (8,), 2, vocab_size=50, pad_id=0))
    assert decide(model=model).why["cuda_graphs"].startswith("transformers writes out the whole attention mask")
    model.padded = False
    assert decide(model=model).cuda_graphs is True


def test_on_a_cpu():
    choice = decide("precision=fp32", cuda=False)
    assert (choice.cuda_graphs, choice.compile, choice.benchmark) == (False, "off", False)
