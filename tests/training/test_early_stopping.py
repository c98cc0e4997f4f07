"""Runs that end when a value of the validation no longer improves."""

import pytest
from few_steps import FEW_STEPS
from refused import assert_refused

# a learning rate of next to nothing: no epoch after the first improves
WORDS = [
    "model=mlp",
    *FEW_STEPS,
    "optimizer.lr=1e-12",
    "trainer.max_epochs=9",
    "trainer.early_stopping=val/accuracy",
]


def test_a_run_ends_early_and_says_so(train):
    """Also if it is cut off in its test, and continues."""
    ran = train(*WORDS, "trainer.early_stopping_patience=2")
    assert ran.code == 0, ran.err
    assert ran.record["stopped_early"] == {"metric": "val/accuracy", "epochs": 3}
    assert ran.record["setting"]["trainer.early_stopping"] == "val/accuracy"
    assert (steps := ran.record["precision"]["optimizer_steps"]) == 3 * 2
    (ran.folder / "result.json").unlink()
    again = train(*WORDS, "trainer.early_stopping_patience=2", "if_exists=resume")
    assert again.code == 0, again.err
    assert again.record["precision"]["optimizer_steps"] == steps
    assert again.record["stopped_early"] == ran.record["stopped_early"]


def test_the_epochs_before_the_pruning_do_not_count(train):
    ran = train(*WORDS, "sparsity=2of4", "sparsity.start_step=10", "trainer.early_stopping_patience=1")
    assert ran.code == 0, ran.err
    assert ran.record["sparsity"]["verified"]
    assert ran.record["stopped_early"]["epochs"] == 7  # the first epoch of the pruned model is its best


@pytest.mark.parametrize(("words", "epochs"), [([], 4), (["trainer.max_epochs=2"], None)])
def test_the_patience_of_three_validations(train, words, epochs):
    record = train(*WORDS, *words).record
    assert record.get("stopped_early", {}).get("epochs") == epochs


def test_a_value_that_the_validation_does_not_have(train):
    ran = train(*WORDS, "trainer.early_stopping=val/f1")
    assert_refused(ran, "trainer.early_stopping=val/f1: the validation has val/loss, val/accuracy. Name one")
