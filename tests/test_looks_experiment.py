"""experiments/looks: its tests are compare's, and the committed error rates."""

import numpy as np
import pytest
from experiment import script

from mpx.compare.statistics import examine
from mpx.runs.result import METRICS

run = script("looks/run.py")


@pytest.mark.parametrize("shape", ["normal", "coarse"])
def test_p_values_are_those_of_compare(monkeypatch, shape):
    monkeypatch.setattr(run, "STUDIES", 50)
    setting, control = run.draw(shape, 0.1, 0.5, np.random.default_rng(0))
    for n in (3, 4, 20):
        for study, (no_loss, loss) in enumerate(run.p_values(setting, control, n).T):
            sides = (dict(enumerate(side[study, :n].tolist())) for side in (setting, control))
            found = examine(*sides, METRICS["test/accuracy"], run.PLAN.margin, run.PLAN.confidence)
            assert (no_loss, loss) == pytest.approx(
                (found.p_no_loss or 0.0, found.p_loss or 0.0) if found.p_no_loss is not None else (1, 1)
            )


def test_a_setting_that_is_decided_leaves_the_others_more(monkeypatch):
    """Where six of seven are far from losing, Holm's method tests the seventh nearly as one alone; else at a
    seventh of the level.
    """
    monkeypatch.setattr(run, "STUDIES", 4000)
    alone, beside = (run.family(settings, 1, run.GRID)["no_loss"] for settings in (1, 7))
    assert 0.01 < beside < alone < 0.06
