"""Two GPUs train one model, each replaying its recorded step with the all-reduce in it."""

import json

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

SHORT = ["trainer.max_epochs=4", "trainer.progress=off", "trainer.warmup_steps=2"]
TWO = ["trainer.devices=2", "data.batch_size=32"]
LAST = "checkpoints/last.ckpt"


@pytest.mark.parametrize(
    "overrides",
    [
        [
            "task=resnet20_digits",
            "precision=amp",
            "sparsity=2of4",
            "trainer.ema_decay=0.9",
            "trainer.gradient_clip_val=1.0",
        ],
        [
            "task=resnet20_digits",
            "precision=amp_bf16",
            "trainer.compile=default",
            "sparsity=2of4",
            "sparsity.start=0.3",
        ],
        ["task=lstm_digits", "precision=amp", "sparsity=2of4", "sparsity.shape_rule=any"],
        [
            "task=mlp_digits",
            "precision=amp",
            "sparsity=2of4",
            "sparsity.recipe=sr_ste",
            "trainer.ema_decay=0.9",
        ],
        [
            "model=bert_small",
            "model.num_layers=1",
            "data=synthetic",
            "data.kind=text",
            "data.shape=[16]",
            "data.classes=2",
            "precision=o2",
        ],
        ["task=mlp_digits", "precision=fp32", "numerics.every=7", "audit=true"],
    ],
    ids=lambda words: words[0].split("=")[1],
)
def test_steps_are_replayed_on_both(command, overrides):
    """A save compares both ranks' weights, moments, masks and scale, so a run that completes has saved equal
    ones.
    """
    ran = command(*SHORT, *TWO, *overrides, "trainer.cuda_graphs=true")
    assert ran.code == 0, ran.err
    record = json.loads((ran.folders[0] / "result.json").read_text())
    steps = record["precision"]["optimizer_steps"] + record["precision"]["skipped_steps"]
    assert record["speed"]["chosen"]["graph"]["replayed_steps"] > steps / 2
    if any(word == "sparsity=2of4" for word in overrides):
        assert record["sparsity"]["verified"] is True
        assert record["speed"]["chosen"]["graph"]["recorded"] == 2


@pytest.mark.parametrize(
    "model",
    [
        ["model=mlp"],
        ["model=lstm", "model.dropout=0"],
        ["model=bert_small", "model.num_layers=2", "model.hidden_dropout=0", "model.attention_dropout=0"],
    ],
    ids=lambda words: words[0].split("=")[1],
)
def test_two_gpus_take_the_steps_of_one(command, model):
    """On 2 × 32 samples the weights move as on the same 64, up to rounding."""
    steps = [
        *SHORT[1:],
        *model,
        "trainer.max_steps=30",
        "trainer.max_epochs=10",
        "data.augment=none",
        "optimizer=sgd",
        "optimizer.lr=0.01",
    ]
    one = command(*steps, "study=one", "data.batch_size=64")
    two = command(*steps, "study=two", *TWO)
    assert (one.code, two.code) == (0, 0), one.err + two.err
    alike(*(weights(saved(two, study)) for study in ("one", "two")), atol=1e-5)


@pytest.mark.parametrize("graphs", ["true", "false"])
def test_resumed_with_dropout_as_uninterrupted(command, graphs):
    words = [
        *SHORT[1:],
        "model=mlp",
        "model.dropout=0.3",
        "optimizer=sgd",
        "optimizer.lr=0.05",
        "schedule=constant",
        "trainer.devices=2",
    ]
    words += ["data.batch_size=16", f"trainer.cuda_graphs={graphs}"]
    whole = command(*words, "study=whole", "trainer.max_epochs=4")
    half = command(*words, "study=half", "trainer.max_epochs=2")
    assert (whole.code, half.code) == (0, 0), whole.err + half.err
    again = command(
        *words, "study=again", "trainer.max_epochs=4", f'ckpt_path="{saved(half, "half") / LAST}"'
    )
    assert again.code == 0, again.err
    alike(*(weights(saved(again, study)) for study in ("whole", "again")), atol=1e-4)


def saved(ran, study):
    """The folder of the study's one run."""
    (folder,) = [folder for folder in ran.folders if folder.parents[1].name == study]
    return folder


def weights(folder):
    return torch.load(folder / LAST, weights_only=True, map_location="cpu")["state_dict"]


def alike(one, other, atol):
    for name, value in one.items():
        assert torch.allclose(value, other[name], atol=atol), name


NET = """
import os
import torch
from torch import nn

class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        wait(gradient)
        return gradient

def wait(x):
    if os.environ.get("LOCAL_RANK") == "1":
        x.sum().item()  # a CUDA graph cannot record this

class Net(nn.Module):
    def __init__(self, input_shape, num_classes, where):
        super().__init__()
        self.where = where
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, num_classes)

    def forward(self, x):
        x = self.first(x.flatten(1))
        if self.where == "forward":
            wait(x.detach())
        else:
            x = Wait.apply(x)
        return self.last(x)
"""


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_cannot_record_takes_the_other_back(command, tmp_path, where):
    (tmp_path / "waiting_net.py").write_text(NET)
    ran = command(
        *SHORT, *TWO, "model=custom", "model._target_=waiting_net.Net", f"+model.kwargs.where={where}"
    )
    assert ran.code == 0, ran.err
    record = json.loads((ran.folders[0] / "result.json").read_text())
    graph = record["speed"]["chosen"]["graph"]
    assert graph["given_up"].startswith("on rank 1: ")
    assert graph["replayed_steps"] == 0
    assert record["metrics"]["test/accuracy"] > 0.5
