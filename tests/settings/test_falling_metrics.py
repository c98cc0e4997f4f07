"""A metric that falls is not taken for one that should rise."""

import pytest

from mpx.errors import UserError
from mpx.settings.check import check_goal


@pytest.mark.parametrize(
    "metric",
    [
        "val/loss",
        "test/MSE",
        "val_loss_epoch",
        "val_rmse/dataloader_idx_1",
        "test_nll",
    ],
)
def test_falling(metric):
    with pytest.raises(
        UserError, match=f"metric={metric} should fall, but metric_goal=max. Use metric_goal=min, or "
    ):
        check_goal(metric, "max")
    check_goal(metric, "min")


@pytest.mark.parametrize(
    "metric",
    [
        None,
        "val/dice",
        "val/neg_mse",
        "val/lossless",
        "val/loss_ratio",
        "val/inv_loss",
    ],
)
def test_not_known_to_fall(metric):
    check_goal(metric, "max")
