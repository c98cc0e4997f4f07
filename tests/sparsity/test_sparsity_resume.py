"""A run of any recipe that is cut off and resumed ends with the weights and masks of the run that was not, bit for bit."""

import pytest
import torch

from mpx.measure.throughput import Throughput

RUN = (
    "model=mlp", "model.widths=[32,32]", "model.dropout=0.2", "data.batch_size=32", "trainer.max_epochs=3", "trainer.limit_train_batches=8",
    "trainer.warmup_steps=0", "trainer.checkpoint_every_n_steps=3", "trainer.accelerator=cpu", "precision=amp", "sparsity=2of4",
)  # fmt: skip
RECIPES = {
    "asp": (),
    "asp, masks again and again": ("sparsity.recompute_every=4",),
    "one_shot": ("sparsity.recipe=one_shot",),
    "from_start": ("sparsity.recipe=from_start", "sparsity.recompute_every=5"),
    "gradual": ("sparsity.recipe=gradual", "sparsity.start=0.2", "sparsity.end=0.8"),
    "sr_ste, sgd": ("sparsity.recipe=sr_ste", "sparsity.start=0.2", "optimizer=sgd", "optimizer.lr=0.1"),
    "sr_ste, adamw": ("sparsity.recipe=sr_ste", "sparsity.start=0.2", "trainer.ema_decay=0.9"),
}


def final(ran, study):
    (file,) = (ran.outputs / study).glob("*/seed0/checkpoints/last.ckpt")
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("cut", [7, 13, 20])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_resumed_run_equals_the_uncut_one(train, monkeypatch, recipe, cut):
    uncut = train(*RUN, *recipe, "study=uncut")
    assert uncut.code == 0, uncut.err

    def stop(self, trainer, *args):
        if trainer.global_step == cut:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Throughput, "on_train_batch_start", stop)
        assert train(*RUN, *recipe, "study=cut").code == 130
    resumed = train(*RUN, *recipe, "study=cut", "if_exists=resume")
    assert resumed.code == 0, resumed.err
    one, other = final(uncut, "uncut"), final(resumed, "cut")
    same(one["state_dict"], other["state_dict"])
    for part in ("masks", "stash"):
        same(one["callbacks"]["Pruning"][part], other["callbacks"]["Pruning"][part])
    same(one["callbacks"]["Pruning"]["recipe"].get("variances", {}), other["callbacks"]["Pruning"]["recipe"].get("variances", {}))
    assert one["callbacks"]["Pruning"]["kept"] == other["callbacks"]["Pruning"]["kept"]


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
