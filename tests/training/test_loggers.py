"""Lightning's other loggers beside TensorBoard's."""

import csv
from importlib.util import find_spec

import pytest
from few_steps import FEW_STEPS
from refused import assert_refused

MLP = ["model=mlp", *FEW_STEPS]


def test_a_csv_has_the_values_and_the_results(train):
    ran = train(*MLP, "logger=csv", "trainer.log_every_n_steps=1")
    assert ran.code == 0, ran.err
    written = ran.folder / "csv" / "version_0"
    with open(written / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    assert len(losses) == 2
    assert float(rows[-1]["test/accuracy"]) == pytest.approx(ran.record["metrics"]["test/accuracy"])
    assert "precision: fp32" in (written / "hparams.yaml").read_text()
    assert train(*MLP, "if_exists=skip").folder == ran.folder  # of the same setting


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_not_there(train, name):
    if find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    assert_refused(train(*MLP, f"logger={name}"), f"logger={name} needs the package {name}, which is not")


def test_an_argument_that_the_logger_does_not_have(train):
    assert_refused(train(*MLP, "logger=csv", "+logger.nmae=a"), "unexpected keyword argument 'nmae'")
