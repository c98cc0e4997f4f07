"""deploy.json, which is not trusted: what is read of its rows, and that any other content is set aside with a reason."""

import json
import math
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_runs import GPU, deployed_row, record, served, write
from started import start

from mpx.compare.__main__ import main
from mpx.compare.collect import collect
from mpx.compare.deployed import read_served
from mpx.compare.metric import METRICS, judged_by

TRAINED, ACCURACY = {"test/accuracy": 0.9}, METRICS["test/accuracy"]


def test_a_row(tmp_path):
    row = deployed_row(5000.0, sparse_layers=["fc"], backend="compile")
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [row]}))
    expected = served(sparse=True, backend="compile", value=0.9, asked="format=fp16 weights=auto")
    assert read_served(tmp_path, TRAINED, ACCURACY) == ((expected,), [])


@pytest.mark.parametrize(
    ("small", "by"),
    [
        ({}, None),
        ({"backend": "compile", "sparse_layers": ["other"]}, None),
        ({"backend": "graph", "sparse_layers": ["fc"]}, "by graph"),
        ({"backend": "compile", "sparse_layers": []}, "dense by compile"),
    ],
)
def test_the_latency_says_what_served_its_batch(tmp_path, small, by):
    row = deployed_row(sparse_layers=["fc"], backend="compile")
    row["speed"][0] |= small
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [row]}))
    ((found,), _) = read_served(tmp_path, TRAINED, ACCURACY)
    assert (found.latency_by, found.way.sparse, found.way.backend) == (by, True, "compile")


@pytest.mark.parametrize(
    ("device", "quantised", "words"),
    [("cuda", ["fc"], "Dense INT8"), ("cuda", [], "Dense BF16"), ("cpu", [], "Dense FP32")],
)
def test_what_multiplies_no_8_bits_is_not_called_int8(tmp_path, device, quantised, words):
    row = deployed_row(format="int8", quantised_layers=quantised, device=device, environment={"device": [GPU], "cpu": "a CPU"})
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [row]}))
    ((found,), _) = read_served(tmp_path, TRAINED, ACCURACY)
    assert found.way.words == f"{words} (format=int8 weights=auto)"


@pytest.mark.parametrize(("finetune", "tuned"), [(None, False), ({"kept": False}, False), ({"kept": True}, True)])
def test_weights_that_were_fine_tuned_are_told_apart(tmp_path, finetune, tuned):
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(format="int8", finetune=finetune)]}))
    ((found,), _) = read_served(tmp_path, TRAINED, ACCURACY)
    assert found.way.tuned is tuned


def test_on_a_cpu_threads_are_part_of_the_device(tmp_path):
    row = deployed_row(device="cpu", exclusive=None, environment={"device": None, "cpu": "a CPU", "threads": 2})
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [row]}))
    ((found,), _) = read_served(tmp_path, TRAINED, ACCURACY)
    assert (found.place.device, found.exclusive) == ("a CPU, 2 threads", None)


def test_the_host_its_driver_and_the_versions_are_part_of_the_place(tmp_path):
    known = {"device": [GPU], "cpu": "a CPU", "driver": "580", "torch": "2.11.0", "git": "abc", "host": "aaaaaa"}
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
        (("test/accuracy", "max"), {"test/accuracy": 0.9}, {"test/accuracy": None}, False),
        ((None, None), {"test/accuracy": 0.2, "test/perplexity": 100.0}, {"test/accuracy": 0.1, "test/perplexity": 100.4}, True),
        (("test/perplexity", "min"), {"test/accuracy": 0.2, "test/perplexity": 100.0}, {"test/perplexity": 100.6}, False),
        (("test/mse", "min"), {"test/mse": 8.0}, {"test/mse": 8.03}, True),
        (("test/mse", "min"), {"test/mse": 8.0}, {"test/mse": 8.05}, False),
        (("test/nll", "min"), {"test/nll": -8.0}, {"test/nll": -7.97}, True),
        (("test/nll", "min"), {"test/nll": -8.0}, {"test/nll": -7.95}, False),
        (("test/map", "max"), {"test/map": 0.8, "test/f1": 0.9}, {"test/map": 0.796, "test/f1": 0.1}, True),
        (("test/f1", "max"), {"test/accuracy": 0.8, "test/f1": 0.9}, {"test/accuracy": 0.8, "test/f1": 0.894}, False),
        ((None, None), {}, {"test/accuracy": 0.9}, False),
    ],
)
def test_as_accurate_as_after_training(tmp_path, declared, trained, metrics, accurate):
    name, goal = declared
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(metrics=metrics)]}))
    assert read_served(tmp_path, trained, judged_by(trained, name, goal))[0][0].accurate is accurate


def at(**changed):
    speed = {"batch": 1, "latency_ms_p50": 0.5, "latency_ms_p99": 0.6, "serve_samples_per_s": 5.0, "backend": "graph", "sparse_layers": []}
    return {"speed": [speed | changed]}


ESCAPE = "\x1b]0;owned\x07"
HOSTILE = [
    *(None, 7, "x", [], {}, [[[[]]]], math.nan),
    *(
        deployed_row(**{key: value})
        for key in ("format", "backend", "sparse_layers", "speed", "metrics", "weights_gib", "environment")
        for value in (None, 1e308, math.nan, "x" * 10**5, ESCAPE, True)
    ),
    *(deployed_row(**{key: [[[ESCAPE]]]}) for key in ("format", "backend", "speed", "metrics", "weights_gib", "environment")),
    *(deployed_row(**{key: {"a": {}}}) for key in ("format", "backend", "sparse_layers", "speed", "weights_gib", "environment")),
    *(deployed_row(**at(batch=value)) for value in (None, 0, -1, 1.5, True, "1", 10**400, math.nan)),
    *(deployed_row(**at(latency_ms_p50=value)) for value in (None, 0, -1.0, math.nan, math.inf, 1e308, 10**400, "1", [1])),
    *(deployed_row(**at(serve_samples_per_s=value)) for value in (0.0, 5e-324, 1e308)),
    *(deployed_row(**at(backend=value)) for value in (None, 1, "x", ESCAPE, ["eager"], {})),
    *(deployed_row(**at(sparse_layers=value)) for value in (None, 1, "x", {})),
    *(deployed_row(metrics={"test/accuracy": value}) for value in (1.5, -0.1, math.nan, "1", True, 10**400)),
    *(deployed_row(environment={"device": value}) for value in (None, [], [None], [ESCAPE], ["x" * 201], [[GPU]], {})),
    *(deployed_row(exclusive=value) for value in (0, 1, "true", [])),
]


def test_what_mpx_cannot_have_written_is_set_aside_row_by_row(tmp_path):
    folder = write(tmp_path / "s" / "a" / "seed0", record(accuracy=0.9))
    (folder / "deploy.json").write_text(json.dumps({"rows": [*HOSTILE, deployed_row()]}))
    (run,), left_out = collect(tmp_path / "s")
    assert run.served == (served(value=0.9, asked="format=fp16 weights=auto"),)
    assert {name for name, _ in left_out} == {"a/seed0"}
    assert sorted(int(reason.split()[2].rstrip(",")) for _, reason in left_out) == list(range(1, len(HOSTILE) + 1))
    assert all(len(reason) < 200 and reason.isprintable() for _, reason in left_out)


DAMAGED = ["", "{", "[]", "7", '{"rows": 1}', '{"rows": {}}', "[" * 10**5, '{"rows": ' + "[" * 10**5, b"\xff\xfe"]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_file_that_is_none_of_mpx(tmp_path, content):
    folder = write(tmp_path / "outputs" / "s" / "a" / "seed0", record())
    (folder / "deploy.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    (run,), ((name, reason),) = collect(tmp_path / "outputs" / "s")
    assert (run.served, name) == ((), "a/seed0")
    assert reason.startswith("deploy.json was not written by mpx, or is damaged (")


def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row()]}))
    (tmp_path / "deploy.json").chmod(0)
    if os.access(tmp_path / "deploy.json", os.R_OK):
        pytest.skip("root may read everything")
    assert read_served(tmp_path, TRAINED, ACCURACY) == ((), ["deploy.json cannot be read: Permission denied"])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([ESCAPE, 1e308, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None, database=None)
@example(key="speed", value=ESCAPE, inside=True)
@given(key=st.sampled_from(sorted(deployed_row())), value=ANY, inside=st.booleans())
def test_any_value_of_any_field_is_read_or_set_aside(tmp_path_factory, key, value, inside):
    folder = tmp_path_factory.getbasetemp()
    row = deployed_row()
    if inside and isinstance(row[key], dict):
        row[key] = row[key] | dict.fromkeys(row[key], value)
    elif inside and key == "speed":
        row = deployed_row(**at(**dict.fromkeys(row["speed"][0], value)))
    else:
        row[key] = value
    (folder / "deploy.json").write_text(json.dumps({"rows": [row]}))
    found, aside = read_served(folder, TRAINED, ACCURACY)
    assert len(found) + len(aside) == 1
    assert all(reason.isprintable() for reason in aside)


def test_a_hostile_file_is_a_line_of_the_comparison(tmp_path):
    folder = write(tmp_path / "outputs" / "s" / "a" / "seed0", record())
    (folder / "deploy.json").write_text(json.dumps({"rows": [deployed_row(format=ESCAPE), deployed_row(backend=["x" * 10**5])]}))
    done = start(main, tmp_path, "study=s", "control=auto")
    assert (done.code, done.err) == (0, "")
    assert "2 left out:" in done.words
    assert r"a/seed0: deploy.json, row 1, was not written by mpx (ValueError: format is '\x1b]0;owned\x07'" in done.words
    assert "\x1b" not in done.out
