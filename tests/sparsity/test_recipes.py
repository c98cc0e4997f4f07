"""What each recipe does at which step, in whole runs through the front door and by hand."""

import json

import pytest
import torch
from few_steps import FEW_STEPS
from omegaconf import OmegaConf
from torch import nn

from mpx.data.spec import Spec
from mpx.models.mlp import MLP
from mpx.sparsity.callback import Pruning
from mpx.sparsity.choose import plan
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM
from mpx.sparsity.recipes import Gradual, Plan, Recipe

NET = ("model=mlp", "model.widths=[32,32]", "data.batch_size=32")
RUN = (*NET, *FEW_STEPS, "trainer.limit_train_batches=12", "sparsity=2of4")


def settings(**changed):
    usual = {"recipe": "asp", "start": 0.5, "end": 0.75}
    unset = dict.fromkeys(("start_step", "dense_ckpt"))
    return OmegaConf.create(usual | unset | changed)


@pytest.mark.parametrize(
    ("changed", "total", "expected"),
    [
        ({}, 400, Plan(200, 200)),
        ({"start": 0.0}, 10, Plan(0, 0)),
        ({"start": 0.99}, 3, Plan(2, 2)),
        ({}, 1, Plan(0, 0)),
        ({"start_step": 7}, 400, Plan(7, 7)),
        ({"dense_ckpt": "x"}, 400, Plan(0, 0)),
        ({"recipe": "from_start"}, 400, Plan(0, 0)),
        ({"recipe": "gradual"}, 400, Plan(200, 300)),
        ({"recipe": "gradual"}, 4, Plan(2, 3)),
    ],
)
def test_plan(changed, total, expected):
    assert plan(settings(**changed), total) == expected


def masks_of(model, **kwargs):
    return Masks(weights(model, NofM(2, 4), Rules()), NofM(2, 4), **kwargs)


def densities(recipe, masks, steps):
    found = []
    for step in range(steps):
        recipe.before_forward(step, masks, [])
        found.append(float((masks.weights[0].parameter != 0).double().mean()))
    return found


def test_gradual_follows_the_cubic():
    recipe, masks = Gradual("gradual", Plan(2, 42)), masks_of(nn.Linear(64, 64))
    found = densities(recipe, masks, 44)
    assert found[:4] == [1.0] * 4
    expected = [1 - 0.5 * (1 - (1 - number / 20) ** 3) for number in range(1, 21)]
    assert found[4:43:2] == pytest.approx(expected, abs=1e-3)
    assert found[5:44:2] == found[4:43:2]
    assert masks.complete
    assert masks.verify() == []


def test_fixed_masks_are_computed_once():
    recipe, masks, versions = Recipe("asp", Plan(3, 3)), masks_of(nn.Linear(16, 16)), []
    for step in range(9):
        before = masks.masks
        recipe.before_forward(step, masks, [])
        versions += [step] * (masks.masks is not before)
    assert versions == [3]


@pytest.fixture
def densities_of(train, monkeypatch):
    """densities_of(*overrides) -> (record, density of the first pruned layer after each step, learning rate
    of each step).
    """
    seen, rates = [], []
    original = Pruning.on_train_batch_end

    def look(self, trainer, *args):
        original(self, trainer, *args)
        seen.append(float((self.masks.pruned[0].parameter != 0).double().mean()))
        rates.append(float(trainer.optimizers[0].param_groups[0]["lr"]))

    monkeypatch.setattr(Pruning, "on_train_batch_end", look)

    def run(*overrides):
        ran = train(*RUN, *overrides)
        assert ran.code == 0, ran.err
        assert ran.record["sparsity"]["verified"] is True
        assert ran.record["sparsity"]["density"] == pytest.approx(0.5)
        return ran, seen, rates

    return run


def test_asp(densities_of):
    ran, seen, rates = densities_of("schedule.warmup=0.0")
    assert seen == [1.0] * 6 + [0.5] * 6
    assert rates[:6] == rates[6:]  # the dense phase's schedule once more
    assert (ran.record["sparsity"]["recipe"], ran.record["sparsity"]["backend"]) == ("asp", "mpx")
    assert "backend" not in ran.folder.parent.name
    checkpoint = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)
    # the plain model
    MLP([32, 32], 0.0, 16, Spec("image", (1, 8, 8), 10)).load_state_dict(
        checkpoint["state_dict"], strict=True
    )
    masks = checkpoint["callbacks"]["Pruning"]["masks"]
    assert set(masks) == {row["name"] for row in ran.record["sparsity"]["layers"] if row["pruned"]}


def test_from_start(densities_of):
    _, seen, rates = densities_of("sparsity.recipe=from_start")
    assert seen == [0.5] * 12
    assert rates == sorted(rates, reverse=True)  # one schedule


def test_one_shot(densities_of):
    ran, seen, rates = densities_of("sparsity.recipe=one_shot")
    assert seen == [1.0] * 12
    assert rates == sorted(rates, reverse=True)  # one schedule
    for name in ("best", "last"):
        state = torch.load(ran.folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
        assert all(
            NofM(2, 4).holds(state[row["name"]]) for row in ran.record["sparsity"]["layers"] if row["pruned"]
        )


def test_gradual(densities_of):
    _, seen, rates = densities_of("sparsity.recipe=gradual", "sparsity.start=0.25", "sparsity.end=0.75")
    assert seen[:4] == [1.0] * 4
    assert seen == sorted(seen, reverse=True)
    assert seen[9:] == [0.5] * 3
    assert rates == sorted(rates, reverse=True)  # one schedule


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_sr_ste(densities_of, optimizer):
    _, seen, rates = densities_of("sparsity.recipe=sr_ste", "sparsity.start=0.25", f"optimizer={optimizer}")
    assert seen == [1.0] * 3 + [0.5] * 9
    assert rates == sorted(rates, reverse=True)  # one schedule


@pytest.mark.parametrize("decay", ["null", "0.9"])
def test_one_shot_from_a_dense_checkpoint_trains_nothing(train, decay):
    """It prunes the weights that the dense run was tested with: with trainer.ema_decay their averages."""
    dense = train(*RUN[:-1], f"trainer.ema_decay={decay}", "study=dense")
    file = next(dense.outputs.glob("dense/*/seed0/checkpoints/last.ckpt"))
    words = [word for word in RUN if not word.startswith("trainer.max_epochs=")]
    ran = train(*words, "sparsity.recipe=one_shot", f'sparsity.dense_ckpt="{file}"', "study=pruned")
    assert ran.code == 0, ran.err
    assert "nothing is trained: the checkpoint is pruned" in ran.out
    folder = next(ran.outputs.glob("pruned/*/seed0"))
    checkpoint = torch.load(file, weights_only=True)
    before = checkpoint["state_dict"] if decay == "null" else checkpoint["callbacks"]["Ema"]["averages"]
    after = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert before.keys() == after.keys()
    layers = json.loads((folder / "result.json").read_text())["sparsity"]["layers"]
    pruned = {layer["name"] for layer in layers if layer["pruned"]}
    assert set() < pruned < after.keys()
    for name, value in after.items():
        assert torch.equal(
            value, before[name] * NofM(2, 4).mask(before[name]) if name in pruned else before[name]
        ), name


def test_coverage_and_sensitivity_are_reported(train):
    ran = train(*RUN, "sparsity.coverage=true", "sparsity.sensitivity=true")
    assert ran.code == 0, ran.err
    assert "sparse kernel" in ran.out
    rows = ran.record["sparsity"]["sensitivity"]
    assert [row["loss_change"] for row in rows] == sorted((row["loss_change"] for row in rows), reverse=True)
    assert {row["name"] for row in rows} == {
        row["name"] for row in ran.record["sparsity"]["layers"] if row["pruned"]
    }
    assert "sensitivity: the validation loss with only one layer pruned" in ran.out
