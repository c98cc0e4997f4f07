"""Pruned weights, gradients and optimizer state are exactly zero after every optimizer step of a whole run,
whatever the settings.
"""

import json

import pytest
import torch
from few_steps import FEW_STEPS
from pairs import pairs

from mpx.deploy.build import of_run
from mpx.precision.modes import MODES
from mpx.sparsity.callback import Pruning
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM

NET = ("model=mlp", "model.widths=[32,32]", "data.batch_size=32")
RUN = (*NET, *FEW_STEPS, "trainer.limit_train_batches=6", "sparsity.start_step=2")
# of the loss scale: the first steps overflow, those after them do not
LARGE = ("initial=1e11", "ceiling=1e11", "backoff_factor=1e-3")


@pytest.fixture
def watched(train, monkeypatch):
    """watched(*overrides) -> (record, steps looked at): a run in which every step is looked at."""
    looked = []
    original = Pruning.on_train_batch_end

    def look(self, trainer, *args):
        original(self, trainer, *args)
        if not self.masks.active:
            return
        assert self.masks.verify(trainer.optimizers) == []
        for weight in self.masks.pruned:
            away = ~self.masks.masks[weight.name]
            assert not torch.signbit(weight.parameter[away]).any()
            # a gradient that is still being summed is not the optimizer's yet
            if trainer.fit_loop._should_accumulate():
                continue
            # clipping by a NaN norm makes all of it NaN
            if (skipped := trainer.precision_plugin.skipped_last) is not None and skipped:
                continue
            assert (weight.parameter.grad[away] == 0).all()
        looked.append(trainer.global_step)

    monkeypatch.setattr(Pruning, "on_train_batch_end", look)

    def run(*overrides):
        ran = train(*RUN, *overrides)
        assert ran.code == 0, ran.err
        assert ran.record["sparsity"]["verified"] is True
        return ran.record, looked

    return run


@pytest.mark.parametrize(("precision", "optimizer"), pairs(MODES, ["sgd", "adamw"]))
def test_every_mode_and_optimizer(watched, precision, optimizer):
    # squares of gradients are zero in FP16, and 1e-8 bounds nothing there
    eps = ["optimizer.eps=1e-4"] if optimizer == "adamw" else []
    what = (f"precision={precision}", f"optimizer={optimizer}", "sparsity=2of4")
    _, looked = watched(*what, "trainer.gradient_clip_val=0.1", *eps)
    assert looked == [3, 4, 5, 6]


@pytest.mark.parametrize("pattern", ["2of4_2d", "nofm", "unstructured"])
def test_every_pattern(watched, pattern):
    watched(f"sparsity={pattern}", "precision=amp", "optimizer=adamw")


@pytest.mark.parametrize(
    ("overrides", "precision"),
    pairs(
        [
            ("trainer.accumulate_grad_batches=2", "sparsity.start_step=1"),
            ("trainer.gradient_clip_val=0.01", "trainer.gradient_clip_algorithm=value"),
            ("trainer.ema_decay=0.9",),
            ("sparsity.recipe=gradual",),
            ("data.batch_size=32", "trainer.max_epochs=2", "trainer.checkpoint_every_n_steps=2"),
        ],
        ["fp32", "amp"],
    ),
)
def test_what_else_goes_on(watched, precision, overrides):
    _, looked = watched("sparsity=2of4", f"precision={precision}", *overrides)
    assert looked


def test_skipped_steps(watched):
    large = (f"precision.loss_scale.{key}" for key in LARGE)
    record, looked = watched(
        "sparsity=2of4", "precision=amp", "optimizer=adamw", *large, "sparsity.start_step=1"
    )
    assert record["precision"]["skipped_steps"] > 1
    assert record["precision"]["optimizer_steps"] > 1
    assert len(looked) == 5


def test_averages_of_the_weights_are_sparse_when_they_are_tested_and_served(train, monkeypatch):
    seen = []
    original = Masks.mask_averages

    def look(self, averages):
        original(self, averages)
        if self.active:
            seen.append(all(self.pattern.holds(averages[weight.name]) for weight in self.pruned))

    monkeypatch.setattr(Masks, "mask_averages", look)
    for recipe in ("asp", "one_shot", "sr_ste", "gradual"):
        ran = train(
            *RUN[:-1],
            "sparsity=2of4",
            f"sparsity.recipe={recipe}",
            "trainer.ema_decay=0.9",
            f"study={recipe}",
        )
        assert ran.code == 0, ran.err
        folder = next(ran.outputs.glob(f"{recipe}/*/seed0"))
        assert_serves_sparse_averages(folder, json.loads((folder / "result.json").read_text()))
    assert len(seen) >= 8
    assert all(seen)


def assert_serves_sparse_averages(folder, record):
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    pruned, state = (
        saved["callbacks"]["Pruning"]["masks"],
        of_run(folder, record["config"], None).model.state_dict(),
    )
    assert pruned
    assert all(NofM(2, 4).holds(state[weight]) for weight in pruned)
    assert not any(torch.equal(state[weight], saved["state_dict"][weight].float()) for weight in pruned)


def test_a_violated_pattern_fails_the_run(train, monkeypatch):
    monkeypatch.setattr(Masks, "mask_gradients", lambda self: None)
    ran = train(*RUN, "sparsity=2of4")
    assert ran.code == 1
    assert ran.record["status"] == "failed"
    assert "broke the 2of4 pattern: " in ran.record["error"]
