"""Loss scaling and averages of the weights through the front door: divergence that says why, the schedule,
what is tested.
"""

import pytest
import torch
from few_steps import FEW_STEPS
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy

import mpx.data
import mpx.models


def last(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def test_skips_in_a_row_end_the_run_as_diverged(train):
    huge = [
        "precision.loss_scale.initial=1e30",
        "precision.loss_scale.ceiling=1e31",
        "precision.loss_scale.max_skips=4",
    ]
    ran = train("model=mlp", "precision=amp", *huge, "trainer.log_every_n_steps=5", "trainer.max_epochs=1")
    assert ran.code == 3
    assert ran.err.startswith(
        "error: 5 optimizer steps in a row were skipped because gradients were "
        "infinite or NaN (loss scale 3.125e+28"
    )
    assert "Lower precision.loss_scale.initial or floor, or set dynamic=true." in ran.err
    assert ran.err.count("\n") == 1
    record = ran.record
    assert record["status"] == "diverged"
    assert (record["precision"]["skipped_steps"], record["precision"]["optimizer_steps"]) == (5, 0)


@pytest.mark.parametrize(
    "scale", [["initial=1e30", "ceiling=1e31"], ["initial=1e30", "dynamic=false"]], ids=["dynamic", "fixed"]
)
def test_a_run_that_skipped_every_step_has_not_completed(train, scale):
    """However few its steps are: it would count as a trained model."""
    ran = train("model=mlp", "precision=amp", *(f"precision.loss_scale.{key}" for key in scale), *FEW_STEPS)
    assert ran.code == 3
    assert "error: all 2 optimizer steps were skipped because gradients were infinite or NaN. " in ran.err
    assert ran.record["status"] == "diverged"


def test_a_scale_at_its_floor_ends_the_run_as_diverged(train):
    low = [
        "precision.loss_scale.initial=1e30",
        "precision.loss_scale.floor=1e29",
        "precision.loss_scale.ceiling=1e31",
    ]
    ran = train("model=mlp", "precision=amp", *low, "trainer.log_every_n_steps=6", "trainer.max_epochs=1")
    assert ran.code == 3
    assert "although the loss scale has fallen to its floor, precision.loss_scale.floor=1e+29" in ran.err
    assert ran.record["precision"]["loss_scale"]["min"] == pytest.approx(1e29)


def test_average_of_the_weights_is_what_is_tested(train):
    """The test loss is that of a plain model with the averages in it, which the rate makes another than that
    of the last weights.
    """
    steps = ["trainer.limit_train_batches=10", "trainer.limit_test_batches=1.0"]
    ran = train("model=mlp", "optimizer=sgd", "optimizer.lr=0.5", *FEW_STEPS, *steps, "trainer.ema_decay=0.9")
    assert ran.code == 0, ran.err
    checkpoint, config = last(ran.folder), OmegaConf.create(ran.record["config"])
    data = mpx.data.load(config.data)
    images, labels = data.test.finish(*data.test.raw(torch.arange(len(data.test)), None), None)
    model = mpx.models.build(config.model, data.spec).eval()

    def loss(weights):
        model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
        with torch.no_grad():
            return cross_entropy(model(images), labels).item()

    averaged, newest = loss(checkpoint["callbacks"]["Ema"]["averages"]), loss(checkpoint["state_dict"])
    assert ran.record["metrics"]["test/loss"] == pytest.approx(averaged, rel=1e-4)
    assert newest != pytest.approx(averaged, rel=1e-2)
