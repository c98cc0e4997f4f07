import pytest
import torch
from torch.nn.functional import cross_entropy

from mpx.data.tasks import Meters


@pytest.mark.parametrize("shape", [(10,), (10, 3)])
def test_batches_of_any_size_give_the_mean_over_targets(shape):
    """As one batch of all, and again after each reading."""
    logits, y = 3 * torch.randn(*shape, 5), torch.randint(0, 5, shape)
    meters = Meters()
    for sizes in ((10,), (4, 4, 2), (9, 1)):
        for part, labels in zip(logits.split(sizes), y.split(sizes), strict=True):
            meters.add(part, labels)
        found = meters.take("lm")
        assert found["loss"].item() == pytest.approx(
            cross_entropy(logits.flatten(0, -2), y.flatten()).item(), rel=1e-6
        )
        assert found["perplexity"].item() == pytest.approx(found["loss"].exp().item())
        assert found["accuracy"].item() == pytest.approx((logits.argmax(-1) == y).double().mean().item())
    meters.add(logits, y)
    assert meters.take("image").keys() == {"loss", "accuracy"}
