import json

import pytest
import torch
from few_steps import FEW_STEPS
from torch import nn
from torch.nn.functional import cross_entropy

from mpx.data.spec import Spec
from mpx.data.tasks import TrainingLoss, loss_of
from mpx.training.module import TrainingModule


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
def test_smoothed_targets_count_in_training_alone(shape):
    """Szegedy et al. (arXiv:1512.00567), section 7: a share is taken from the target and spread over all
    classes.
    """
    classes, share = 5, 0.2
    x = torch.randn(*shape, 4)
    y = torch.randint(0, classes, shape)
    module = TrainingModule(
        TrainingLoss(nn.Linear(4, classes), share), Spec("image", (4,), classes), None, None, None
    )
    log_p = module(x).log_softmax(-1)
    true = log_p.gather(-1, y[..., None]).mean()
    smoothed = -((1 - share) * true + share * log_p.mean())
    torch.testing.assert_close(module.loss.of_batch(x, y), smoothed)
    torch.testing.assert_close(loss_of(module(x), y), -true)


def test_label_smoothing_reaches_training(train):
    train("model=mlp", "trainer.max_epochs=2")
    ran = train("model=mlp", "trainer.max_epochs=2", "label_smoothing=0.5")
    smoothed, plain = (
        json.loads((folder / "result.json").read_text())["metrics"]["test/loss"]
        for folder in sorted(ran.folders)
    )
    assert smoothed > 1.2 * plain  # less sure of itself; measured without smoothing


def test_views_of_an_image_count_in_the_test_alone():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    module = TrainingModule(TrainingLoss(model), Spec("image", (1, 3, 4), 5), None, None, None, tta="flip")
    x, y = torch.randn(7, 1, 3, 4), torch.randint(0, 5, (7,))
    module.validation_step((x, y), 0)
    module.test_step((x, y), 0)
    both = (model(x) + model(x.flip(3))) / 2
    for stage, logits in {"val_": model(x), "test_": both}.items():
        torch.testing.assert_close(module.meters[stage]["loss"].compute().float(), cross_entropy(logits, y))
        torch.testing.assert_close(
            module.meters[stage]["accuracy"].compute(), (logits.argmax(1) == y).double().mean()
        )
    torch.testing.assert_close(module.loss.of_batch(x, y), cross_entropy(model(x), y))


@pytest.mark.slow
def test_training_on_crops(train):
    """The network sees 6×6 pixels in training and 8×8 in the test."""
    flops = []
    for study, words in {"crops": ["data.crop=6", "data.augment=crop"], "whole": []}.items():
        ran = train("task=resnet20_digits", *FEW_STEPS, f"study={study}", *words)
        assert ran.code == 0, ran.err
        speed = json.loads(next(ran.outputs.glob(f"{study}/*/seed0/result.json")).read_text())["speed"]
        flops.append(speed["model_tflops_per_s"] / speed["train_samples_per_s"])
    assert flops[0] < 0.8 * flops[1]
