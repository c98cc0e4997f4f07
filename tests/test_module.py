import json

import pytest
import torch
from torch import nn

from mpx.module import TrainingModule
from mpx.spec import Spec


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
def test_smoothed_targets_count_in_training_alone(shape):
    """Szegedy et al. (arXiv:1512.00567), section 7: a share is taken from the target and spread over all classes."""
    classes, share = 5, 0.2
    x = torch.randn(*shape, 4)
    y = torch.randint(0, classes, shape)
    module = TrainingModule(nn.Linear(4, classes), Spec("image", (4,), classes), None, None, label_smoothing=share)
    log_p = module(x).log_softmax(-1)
    true = log_p.gather(-1, y[..., None]).mean()
    smoothed = -((1 - share) * true + share * log_p.mean())
    torch.testing.assert_close(module.forward_loss(x, y), smoothed)
    torch.testing.assert_close(module.loss(module(x), y), -true)


def test_label_smoothing_reaches_training(train):
    train("model=mlp", "trainer.max_epochs=2")
    ran = train("model=mlp", "trainer.max_epochs=2", "label_smoothing=0.5")
    smoothed, plain = (json.loads((folder / "result.json").read_text())["metrics"]["test/loss"] for folder in sorted(ran.folders))
    assert smoothed > 1.2 * plain  # less sure of itself; measured without smoothing
