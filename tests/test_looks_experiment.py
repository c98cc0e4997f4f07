"""experiments/looks: its tests are compare's, the committed error rates, and the card."""

import csv
import importlib.util

import numpy as np
import pytest
from documents import ROOT

from mpx.compare.comparison import METRICS
from mpx.compare.statistics import examine

HERE = ROOT / "experiments" / "looks"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("looks_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE.parent))
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    with (HERE / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("shape", ["normal", "coarse"])
def test_p_values_are_those_of_compare(run, monkeypatch, shape):
    monkeypatch.setattr(run, "STUDIES", 50)
    setting, control = run.draw(shape, 0.1, 0.5, np.random.default_rng(0))
    for n in (3, 4, 20):
        for study, (no_loss, loss) in enumerate(run.p_values(setting, control, n).T):
            sides = (dict(enumerate(side[study, :n].tolist())) for side in (setting, control))
            found = examine(*sides, METRICS["test/accuracy"], run.PLAN.margin, run.PLAN.confidence)
            assert (no_loss, loss) == pytest.approx(
                (found.p_no_loss or 0.0, found.p_loss or 0.0) if found.p_no_loss is not None else (1, 1)
            )


def test_the_committed_errors(run, rows):
    """The standard error of a share is 0.2 points."""
    wrong = {(row["design"], row["shape"], row["scatter"]): float(row["no_loss"]) for row in rows if row["loss"] == "1.0"}
    assert {row["studies"] for row in rows} == {"10000"}
    assert max(share for (design, shape, _), share in wrong.items() if design == run.AS_RUN and shape != "failing") <= 0.05
    assert max(share for (design, shape, _), share in wrong.items() if design == run.ALL_LOOKS and shape != "failing") <= 0.05
    assert wrong[run.PEEKING, "normal", "1.0"] > 0.2


def test_card_is_made_from_the_committed_results(run, rows):
    assert (HERE / "README.md").read_text() == run.card(rows)
