"""The list of all runs as flat records, and the removal of failed ones."""

import json

import pytest
from made_runs import record, write
from started import start

import mpx
from mpx.compare.__main__ import main
from mpx.runs.folder import locked


@pytest.fixture
def outputs(tmp_path):
    """Two studies: of the first a finished run, one that failed and one without a record."""
    first = tmp_path / "outputs" / "first" / "resnet18-cifar10-amp-2of4"
    write(first / "seed0", record(precision="amp", sparsity="2of4", **{"optimizer.lr": 0.5}))
    write(first / "seed1", record(status="failed", seed=1) | {"error": "out of memory", "metrics": {}})
    (first / "seed2").mkdir()
    (first / "seed2" / "config.yaml").touch()
    write(tmp_path / "outputs" / "second" / "resnet18-cifar10-fp32-dense" / "seed0", record())
    return tmp_path / "outputs"


def test_every_run_is_a_flat_record(outputs):
    first, failed, cut_off, other = mpx.list_runs(outputs)
    assert [run["status"] for run in (first, failed, cut_off, other)] == [
        "completed", "failed", "cut_off", "completed",
    ]  # fmt: skip
    assert first["folder"] == str(outputs / "first" / "resnet18-cifar10-amp-2of4" / "seed0")
    known = {"study": "first", "precision": "amp", "optimizer.lr": 0.5, "seed": 0, "metric": "test/accuracy"}
    known |= {"test/accuracy": 0.95, "train_samples_per_s": 1000.0, "time_to_train_s": 60.0}
    assert first.items() >= known.items()
    assert (failed["error"], failed["metric"]) == ("out of memory", None)
    assert json.dumps([first, failed, cut_off, other])  # plain values alone


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({"study": "first"}, 3),
        ({"status": "completed"}, 2),
        ({"setting": "amp-2of4"}, 3),
        ({"study": "x"}, 0),
    ],
)
def test_runs_are_chosen(outputs, chosen, count):
    assert len(mpx.list_runs(outputs, **chosen)) == count


def test_the_list_on_the_terminal(outputs):
    done = start(main, outputs.parent, "list=true", "status=completed")
    assert (done.code, done.err) == (0, "")
    assert [[line.split()[0], line.split()[-1]] for line in done.out.splitlines() if "cifar10" in line] == [
        ["first", "resnet18-cifar10-amp-2of4"],
        ["second", "resnet18-cifar10-fp32-dense"],
    ]
    assert "test/accuracy 0.9500 1,000 60.0 s" in done.words
    assert start(main, outputs.parent, "list=true", "study=x").out == "no such run below outputs\n"
    assert "status=failed chooses among" in start(main, outputs.parent, "status=failed").err


def test_a_narrow_terminal_breaks_no_name(outputs):
    long = "resnet18-cifar10-amp_bf16-2of4-data.batch_size=512-optimizer.lr=0.05"
    write(outputs / "second" / long / "seed0", record())
    narrow = {"TTY_COMPATIBLE": "1", "COLUMNS": "100"}
    done = start(main, outputs.parent, "list=true", f"setting={long[:30]}", env=narrow)
    assert [line.split()[-1] for line in done.out.splitlines() if line.startswith("second ")] == [long]


def test_failed_runs_are_removed_but_not_one_that_runs(outputs):
    failed = outputs / "first" / "resnet18-cifar10-amp-2of4" / "seed1"
    running = locked(failed)
    assert start(main, outputs.parent, "remove=failed").out == "0 runs removed\n"
    running.release()
    assert start(main, outputs.parent, "remove=failed", "study=second").out == "0 runs removed\n"
    done = start(main, outputs.parent, "remove=failed")
    assert done.out == f"removed {failed.relative_to(outputs.parent)}\n1 run removed\n"
    assert [run["status"] for run in mpx.list_runs(outputs)] == ["completed", "cut_off", "completed"]
