"""experiments/tuning: the validation set alone chooses, every grid holds the values of conf/, and the card
says what its table says.
"""

from types import SimpleNamespace

import experiment
import pytest
from hydra import compose, initialize_config_dir
from made_runs import made, record, write
from omegaconf import OmegaConf
from processes import Fork

from mpx.compare.table import read_results
from mpx.settings import check
from mpx.settings.front_door import CONF

HERE = experiment.EXPERIMENTS / "tuning"


@pytest.fixture
def script():
    return experiment.script("tuning/run.py")


class Unread(dict):
    """Metrics of which only the names, and those of the validation, can be read."""

    def __getitem__(self, name):
        assert name.startswith("val/"), f"{name} was read"
        return super().__getitem__(name)

    def values(self, *_):
        raise AssertionError("more than a name was asked for")

    get = items = values


def runs(setting, accuracies, **changed):
    """By the test accuracy, the worst setting would win."""
    metrics = [{"val/accuracy": value, "test/accuracy": 1 - value} for value in accuracies]
    found = [made(setting, seed, **changed, metrics=values) for seed, values in enumerate(metrics)]
    for run in found:
        object.__setattr__(run, "metrics", Unread(run.metrics))  # once the run has checked them
    return found


CONFS = runs("fp32-dense", [0.90, 0.91, 0.92])


def chosen(script, folder, *others):
    """The settings of conf/ and of the winner, by way of the table."""
    table = folder / "results.csv"
    script.keep("resnet18_cifar10", [*CONFS, *(run for setting in others for run in setting)], table)
    assert "test/" not in table.read_text()
    return [row.setting for row in script.choose(read_results(table))]


def test_the_validation_set_chooses_and_the_test_set_is_not_read(script, tmp_path):
    better, worse = (
        runs("fp32-dense optimizer.lr=0.2", [0.93, 0.92, 0.94]),
        runs("fp32-dense optimizer.lr=0.6", [0.1, 0.2, 0.1]),
    )
    assert chosen(script, tmp_path, better, worse) == ["fp32-dense", "fp32-dense optimizer.lr=0.2"]
    assert chosen(script, tmp_path, worse) == ["fp32-dense", "fp32-dense"]


def test_each_grid_holds_the_values_of_conf(script):
    """And each of its settings is one that a run accepts."""
    for task, sweeps in script.GRIDS.items():
        for words in (sweep.split() for sweep in sweeps):
            with initialize_config_dir(str(CONF), version_base="1.3"):
                first = [f"task={task}", *(word.split(",")[0] for word in words)]
                check(compose("train", first), first)
                conf = compose("train", [f"task={task}", *(word for word in words if "," not in word)])
            for key, values in (word.split("=") for word in words if "," in word):
                assert OmegaConf.select(conf, key) in [float(value) for value in values.split(",")], (
                    task,
                    key,
                )


def test_a_run_that_diverged_is_a_result_and_one_that_failed_is_not(script, tmp_path, monkeypatch):
    """Both end their sweep with an error."""

    def sweep(command):
        """Of its runs, the last diverges or fails."""
        count = script.jobs("lstm_digits")
        for number in range(count):
            status = last if number == count - 1 else "completed"
            write(
                tmp_path / "outputs" / "tuning_lstm_digits" / "setting" / f"seed{number}",
                record(seed=number, status=status),
            )
        return SimpleNamespace(returncode=1)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script.subprocess, "run", sweep)
    last = "diverged"
    assert len(script.runs_of("lstm_digits", [])) == script.jobs("lstm_digits")
    last = "failed"
    with pytest.raises(SystemExit, match=r"error: 29 of 30 runs of tuning_lstm_digits are there\."):
        script.runs_of("lstm_digits", [])


@pytest.mark.slow
def test_a_tiny_grid(script, tmp_path, monkeypatch):
    """Its sweeps are forks."""

    def run(command):
        fork = Fork(*command[3:], folder=tmp_path)
        return SimpleNamespace(returncode=fork.wait())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script.subprocess, "run", run)
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(script, "SEEDS", (0, 1))
    monkeypatch.setattr(
        script,
        "GRIDS",
        script.GRIDS | {"mlp_digits": ("optimizer.lr=1e-9,0.01", "sparsity=2of4 sparsity.start=0.5")},
    )
    monkeypatch.setattr(script.sys, "argv", ["run.py", "mlp_digits", "trainer.max_epochs=1"])
    script.main()
    card = (tmp_path / "README.md").read_text()
    assert "| mlp_digits, dense | `optimizer.lr=1e-9,0.01` | `optimizer.lr=0.01` |" in card
    assert card.count("| the same |") == 2  # a rate of 1e-9 learns nothing, and there is one start
    assert len(read_results(tmp_path / "results.csv")) == 6


def test_the_committed_card_is_what_its_table_says(script):
    assert (HERE / "README.md").read_text() == script.card(read_results(HERE / "results.csv"))
