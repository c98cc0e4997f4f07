"""Two processes, each with a part of the model, train as one process with all of it."""

import json
import shutil
from functools import reduce

import pytest
import sharded_net
import torch
from torch import nn

from mpx.errors import UserError
from mpx.training.fsdp import refuse_scalars

OWN = [
    "trainer.accelerator=cpu",
    "model=custom",
    "model._target_=sharded_net.Net",
    "trainer.warmup_steps=2",
    "trainer.limit_train_batches=4",
]
TWO = ["trainer.strategy=fsdp", "trainer.devices=2"]


def checkpoint(ran, study):
    return next((ran.outputs / study).glob("*/seed0/checkpoints/last.ckpt"))


def tensors(value, path=""):
    """Every tensor and number in dicts and lists, by where it is."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: found for key, item in items for name, found in tensors(item, f"{path}/{key}").items()}
    return {path: torch.as_tensor(value)} if isinstance(value, torch.Tensor | float | int) else {}


@pytest.mark.slow
def test_two_shards_train_as_one_process(forked, tmp_path):
    """Two processes continue what one has trained for two of four epochs. Another one trains all four."""
    shutil.copy(sharded_net.__file__, tmp_path)
    words = [*OWN, "sparsity=2of4", "sparsity.recompute_every=3", "sparsity.start_step=4", "optimizer=adamw", "schedule=constant"]
    words += ["trainer.gradient_clip_val=0.5", "trainer.ema_decay=0.9", "data.augment=none"]
    first = forked(*words, "study=first", "data.batch_size=48", "trainer.max_epochs=2")
    assert first.code == 0, first.err
    path = checkpoint(first, "first")
    two = forked(*words, *TWO, "study=two", "data.batch_size=24", "trainer.max_epochs=4", f'ckpt_path="{path}"')
    one = forked(*words, "study=one", "data.batch_size=48", "trainer.max_epochs=4")
    assert (two.code, one.code) == (0, 0), two.err + one.err
    assert "Warning" not in two.err
    ours, theirs = (torch.load(checkpoint(one, study), weights_only=True) for study in ("two", "one"))
    masks = theirs["callbacks"]["Pruning"]["masks"]
    assert len(masks) == 12
    for name, mask in masks.items():
        assert torch.equal(ours["callbacks"]["Pruning"]["masks"][name], mask), name
    for part in ("state_dict", "optimizer_states", "callbacks/Pruning", "callbacks/Ema", "ModePrecision"):
        mine, single = (tensors(reduce(dict.__getitem__, part.split("/"), whole)) for whole in (ours, theirs))
        assert list(mine) == list(single)
        for name, value in single.items():
            assert torch.allclose(mine[name].double(), value.double(), atol=1e-4), (part, name)

    plain = sharded_net.Net((1, 8, 8), 10)
    plain.load_state_dict(ours["state_dict"])
    assert plain.tied[0].weight is plain.tied[1].weight
    (two,), (one,) = (
        [json.loads(file.read_text()) for file in (first.outputs / study).glob("*/seed0/result.json")] for study in ("two", "one")
    )
    assert two["environment"]["resumed_from_steps"] == [8]
    assert two["metrics"]["test/loss"] == pytest.approx(one["metrics"]["test/loss"], rel=1e-3)
    assert two["sparsity"]["verified"] is True
    for key in ("density", "pruned_share", "kept_magnitude"):
        assert two["sparsity"][key] == pytest.approx(one["sparsity"][key], rel=1e-4)
    reasons = [[layer["sparse_kernel_reason"] for layer in record["sparsity"]["layers"]] for record in (two, one)]
    assert reasons[0] == reasons[1]
    assert two["speed"]["chosen"]["compile"] == "off"


@pytest.mark.slow
def test_scaled_steps_and_a_pruning_after_training(forked, tmp_path):
    """The scale begins so high that the first steps overflow. SGD has no fused step here."""
    shutil.copy(sharded_net.__file__, tmp_path)
    words = ["precision=amp", "precision.loss_scale.initial=16777216", "sparsity=2of4", "sparsity.recipe=one_shot", "optimizer=sgd"]
    ran = forked(*OWN, *TWO, *words, "data.batch_size=24", "trainer.max_epochs=4", "schedule=constant")
    assert ran.code == 0, ran.err
    assert "Warning" not in ran.err
    record = ran.record
    assert record["precision"]["skipped_steps"] > 0
    assert record["precision"]["skipped_steps"] + record["precision"]["optimizer_steps"] == 16
    assert record["sparsity"]["verified"] is True
    saved = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["ModePrecision"]["loss_scale"]["scale"] == 2**24 / 2 ** record["precision"]["skipped_steps"]
    for name, mask in saved["callbacks"]["Pruning"]["masks"].items():
        assert torch.equal(saved["state_dict"][name] != 0, mask), name


def test_a_weight_without_rows():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.temperature = nn.Parameter(torch.tensor(1.0))

    with pytest.raises(UserError) as error:
        refuse_scalars(Scaled())
    assert str(error.value) == (
        "trainer.strategy=fsdp shards weights by rows, and temperature of this model is a single number. Give it the shape [1], or use "
        "trainer.strategy=ddp."
    )
