"""mpx.Sparsity in a user's Trainer: which weights get masks, averages of weights, and runs of unknown
length.
"""

import pickle

import pytest
import torch
from own_module import Module, Target, Teacher, fit, loader
from pytorch_lightning.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
from silent import silent_trainer
from torch.utils.data import DataLoader, IterableDataset

import mpx
from mpx.sparsity.patterns import mask_2of4

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's hints about workers and loggers


@pytest.mark.parametrize("kind", [Target, Teacher])
def test_weights_that_no_optimizer_trains_get_no_masks(kind):
    fit(part := mpx.Sparsity("2of4"), module=kind())
    found = part.record(fmt="fp32", device=torch.device("cpu"))
    assert {row["name"]: row["reason"] for row in found["layers"] if row["name"] != "head.weight"} == {
        "encoder.weight": None,
        "target.weight": "no optimizer trains it",
    }
    assert found["verified"]


def smoothed():
    return EMAWeightAveraging(decay=0.9)


BEFORE = "it averages weights from before the pruning at step"


@pytest.mark.parametrize(
    ("average", "settings", "said"),
    [
        (smoothed, {}, f"with EMAWeightAveraging: {BEFORE} 16. Let it begin later"),
        (WeightAveraging, {"start_step": 3}, f"with WeightAveraging: {BEFORE} 3."),
        (lambda: StochasticWeightAveraging(1e-3, swa_epoch_start=2), {}, f"WeightAveraging: {BEFORE}"),
        (smoothed, {"recipe": "sr_ste", "start": 0.0}, "recipe=sr_ste chooses other masks again and again"),
    ],
)
def test_an_average_that_cannot_have_the_pattern_is_refused_before_the_first_step(average, settings, said):
    module = Module()
    with pytest.raises(mpx.UserError, match=said):
        fit(mpx.Sparsity("2of4", **settings), average(), module=module)
    assert module.rates == []


@pytest.mark.parametrize(
    ("average", "settings"),
    [
        (smoothed, {"recipe": "from_start"}),
        (lambda: EMAWeightAveraging(decay=0.9, update_starting_at_step=16), {}),
        (lambda: StochasticWeightAveraging(1e-3, swa_epoch_start=4), {}),
    ],
)
def test_an_average_of_pruned_weights_keeps_the_pattern(average, settings):
    for swapped in (False, True):
        parts = [part := mpx.Sparsity("2of4", **settings), average()]
        fit(*(reversed(parts) if swapped else parts))
        assert part.record(fmt="fp32", device=torch.device("cpu"))["verified"]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(loader().dataset)


@pytest.mark.parametrize(
    "settings",
    [{"recipe": "from_start"}, {"recipe": "sr_ste", "start": 0.0}, {"recipe": "one_shot"}, {"start_step": 4}],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_run_of_unknown_length_without_a_share(settings, stream):
    torch.manual_seed(0)
    data = DataLoader(Stream(), batch_size=8) if stream else loader()
    length = {"max_epochs": 2} if stream else {"max_epochs": -1, "max_time": {"seconds": 1}}
    trainer = silent_trainer(callbacks=[part := mpx.Sparsity("2of4", **settings)], **length)
    trainer.fit(module := Module(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)), data)
    if settings.get("recipe") == "one_shot":
        part.prune_now(trainer)
    assert part.unfinished(trainer) is None
    assert mask_2of4(module.encoder.weight)[module.encoder.weight != 0].all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "sparsity.start=0.5 is a share of a run .* Set trainer.max_steps or sparsity.start_step."),
        ({"recipe": "gradual", "start_step": 2}, "sparsity.end=0.75 is a share .* Set trainer.max_steps."),
    ],
)
def test_a_share_of_a_run_of_unknown_length_is_refused(settings, said):
    with pytest.raises(mpx.UserError, match=said):
        silent_trainer(max_epochs=2, callbacks=[mpx.Sparsity("2of4", **settings)]).fit(
            Module(), DataLoader(Stream(), batch_size=8)
        )


def test_sr_ste_with_manual_optimization_is_refused():
    class ByHand(Module):
        automatic_optimization = False

    with pytest.raises(mpx.UserError, match=r"recipe=sr_ste with manual optimization"):
        fit(mpx.Sparsity("2of4", recipe="sr_ste", start=0.0), module=ByHand())


@pytest.mark.parametrize("make", [mpx.Precision, mpx.Sparsity, mpx.Numerics, mpx.Throughput, mpx.Record])
def test_a_part_goes_to_processes_that_lightning_spawns(make):
    """strategy="ddp_spawn" pickles the Trainer."""
    assert type(pickle.loads(pickle.dumps(make()))) is make


def test_a_second_fit_from_a_dense_checkpoint_prunes_again(tmp_path):
    dense = fit(enable_checkpointing=True, default_root_dir=tmp_path, epochs=2)
    dense.save_checkpoint(tmp_path / "dense.ckpt")
    trainer = fit(part := mpx.Sparsity("2of4", start_step=1), module=(module := Module()), epochs=2)
    first = part.masks
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, loader(), ckpt_path=tmp_path / "dense.ckpt")
    assert part.masks is not first
    assert part.record(fmt="fp32", device=torch.device("cpu"))["verified"]
