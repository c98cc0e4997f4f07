"""experiment=search: Optuna proposes the trials; each trial's accuracy and throughput go back to it."""

import enum
import importlib.util
import json

import pytest
import yaml
from omegaconf import OmegaConf
from refused import assert_refused

from mpx.errors import UserError
from mpx.settings.choices import install
from mpx.sweep.checks import check_direction
from mpx.sweep.jobs import objectives

INSTALLED = importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(
    "hydra_plugins.hydra_optuna_sweeper"
)
FEW = ["task=mlp_digits", "trainer.max_epochs=1", "trainer.limit_train_batches=3", "trainer.warmup_steps=1"]


@pytest.fixture
def ended(tmp_path):
    """ended(**metrics) -> the report of a job whose record has them."""

    def made(status="completed", **metrics):
        record = {"status": status, "metrics": metrics, "speed": {"train_samples_per_s": 1234.5}}
        (tmp_path / "result.json").write_text(json.dumps(record))
        return {"status": status, "folder": str(tmp_path)}

    return made


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"val/accuracy": 0.75, "test/accuracy": 0.7}, 0.75),
        (
            {"val/perplexity": 90.0, "test/perplexity": 95.0, "val/accuracy": 0.3},
            -90.0,
        ),  # the lower, the better
        ({"test/accuracy": 0.7}, None),  # it ended before its first validation
    ],
)
def test_two_directions_are_accuracy_and_throughput(ended, metrics, expected):
    assert objectives(ended(**metrics), "maximize") == expected
    assert objectives(ended(**metrics), ["maximize", "maximize"]) == (
        None if expected is None else (expected, 1234.5)
    )


Direction = enum.Enum("Direction", ["minimize", "maximize"])  # as hydra-optuna-sweeper has it


@pytest.mark.parametrize(
    ("direction", "written"),
    [
        ("minimize", "minimize"),
        (Direction.minimize, "minimize"),
        (["maximize", "minimize"], "[maximize,minimize]"),
    ],
)
def test_a_search_for_the_worst_is_refused(direction, written):
    with pytest.raises(UserError) as error:
        check_direction(OmegaConf.create({"direction": direction}))
    assert str(error.value) == (
        f"hydra.sweeper.direction={written}: of the accuracy, minus a metric that should fall, and "
        "samples/s, more is better. "
        "Use maximize for the first alone, or [maximize,maximize]."
    )


@pytest.mark.skipif(bool(INSTALLED), reason="hydra-optuna-sweeper is installed")
def test_what_is_missing_is_named(train):
    ran = train("-m", "experiment=search")
    assert_refused(ran, f"error: hydra/sweeper=optuna is not installed. {install('optuna')} adds it.")


@pytest.mark.skipif(not INSTALLED, reason="needs hydra-optuna-sweeper")
def test_a_search(command):
    ran = command(
        "-m", "experiment=search", *FEW, "hydra.sweeper.n_trials=3", "optimizer.lr=interval(0.01,0.02)"
    )
    assert ran.code == 0, ran.err
    assert "3/3 " in ran.out
    assert len(ran.folders) == 3
    found = yaml.safe_load((ran.outputs / "search" / "optimization_results.yaml").read_text())["solutions"]
    assert found
    for solution in found:
        assert 0.01 <= solution["params"]["optimizer.lr"] <= 0.02
        assert solution["values"][1] > 1  # samples per second
        assert f"{solution['values'][0]:.4f}  {solution['values'][1]:,.0f} samples/s" in ran.out
