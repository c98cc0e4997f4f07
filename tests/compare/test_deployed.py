"""deploy.json: what is read of its rows, and that any other content is left out with a reason."""

import json

import pytest
from made_runs import GPU, deployed_row, record, served, write

from mpx.compare.collect import collect
from mpx.compare.served import read_served
from mpx.runs.result import METRICS, judged_by

TRAINED, ACCURACY = {"test/accuracy": 0.9}, METRICS["test/accuracy"]


def test_a_row(tmp_path):
    row = deployed_row(5000.0, sparse_layers=["fc"], backend="compile")
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [row]}))
    expected = served(sparse=True, backend="compile", value=0.9)
    assert read_served(tmp_path, TRAINED, ACCURACY) == ((expected,), [])


def test_what_others_used_counts_on_a_cpu_alone(tmp_path):
    environment = {"device": [GPU], "cpu": "a CPU", "threads": 2}
    rows = [
        deployed_row(device=device, cpu_used_by_others=0.2, environment=environment)
        for device in ("cuda", "cpu")
    ]
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": rows}))
    on_gpu, on_cpu = read_served(tmp_path, TRAINED, ACCURACY)[0]
    assert (on_gpu.cpu_used_by_others, on_cpu.cpu_used_by_others) == (None, 0.2)


@pytest.mark.parametrize(
    ("device", "quantised", "words"),
    [("cuda", ["fc"], "Dense INT8"), ("cuda", [], "Dense BF16"), ("cpu", [], "Dense FP32")],
)
def test_what_multiplies_no_8_bits_is_not_called_int8(tmp_path, device, quantised, words):
    row = deployed_row(
        format="int8",
        quantised_layers=quantised,
        device=device,
        environment={"device": [GPU], "cpu": "a CPU"},
    )
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [row]}))
    ((found,), _) = read_served(tmp_path, TRAINED, ACCURACY)
    assert found.way.words == words


def test_the_host_its_driver_and_the_versions_are_part_of_the_place(tmp_path):
    known = {
        "device": [GPU],
        "cpu": "a CPU",
        "driver": "580",
        "torch": "2.11.0",
        "git": "abc",
        "host": "aaaaaa",
    }
    rows = [deployed_row(environment=known | {"mpx": mpx}) for mpx in ("0.1.0+1a2b3c4d", "0.1.0")]
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [*rows, deployed_row()]}))
    newer, older, unknown = (served.place.host for served in read_served(tmp_path, TRAINED, ACCURACY)[0])
    assert newer == "cpu a CPU, driver 580, torch 2.11.0, mpx 0.1.0+1a2b3c4d, host aaaaaa"
    assert older == "cpu a CPU, driver 580, torch 2.11.0, mpx 0.1.0 (git abc), host aaaaaa"
    assert unknown is None


@pytest.mark.parametrize(
    ("declared", "trained", "metrics", "accurate"),
    [
        ((None, None), {"test/accuracy": 0.9}, {"test/accuracy": 0.896}, True),
        ((None, None), {"test/accuracy": 0.9}, {"test/accuracy": 0.894}, False),
        (
            ("test/perplexity", "min"),
            {"test/accuracy": 0.2, "test/perplexity": 100.0},
            {"test/perplexity": 100.6},
            False,
        ),
        (("test/mse", "min"), {"test/mse": 8.0}, {"test/mse": 8.03}, True),
        (("test/mse", "min"), {"test/mse": 8.0}, {"test/mse": 8.05}, False),
        (("test/nll", "min"), {"test/nll": -8.0}, {"test/nll": -7.97}, True),
        (("test/map", "max"), {"test/map": 0.8, "test/f1": 0.9}, {"test/map": 0.796, "test/f1": 0.1}, True),
        ((None, None), {}, {"test/accuracy": 0.9}, False),
    ],
)
def test_as_accurate_as_after_training(tmp_path, declared, trained, metrics, accurate):
    name, goal = declared
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(metrics=metrics)]}))
    assert read_served(tmp_path, trained, judged_by(trained, name, goal))[0][0].accurate is accurate


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [1]}', '{"rows": [{"speed": []}]}'])
def test_a_file_that_is_none_of_mpx(tmp_path, content):
    folder = write(tmp_path / "outputs" / "s" / "a" / "seed0", record())
    (folder / "deploy.json").write_text(content)
    (run,), ((name, reason),) = collect(tmp_path / "outputs" / "s")
    assert (run.served, name) == ((), "a/seed0")
    assert reason.startswith("deploy.json cannot be read (")
