"""When compiling pays, and what a machine remembers of it."""

import json
import os
from dataclasses import replace

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from mpx.acceleration.payoff import Figures, Notebook, compilers_cache, pays, typical

PLAIN = Figures(compile_s=30.0, saves=0.25, step_ms=50.0)
MEASURED = {"resnet50": (True, 53.8, 37.3, 28.0), "resnet18": (True, 8.04, 5.94, 28.0), "bert_small": (False, 14.2, 10.3, 8.0)}  # H200


@pytest.mark.parametrize(("left", "expected"), [(2_400, False), (2_401, True), (0, False)])
def test_pays_from_the_batch_on_that_pays_for_it(left, expected):
    assert pays(PLAIN, left)[0] is expected


def test_the_words():
    assert pays(PLAIN, 3_000)[1] == "3,000 batches of 50 ms; saves 37.5 s and takes 30 s, typically"


def test_a_device_that_waits_for_batches_gains_nothing():
    assert pays(replace(PLAIN, gap_ms=12.5), 10**9)[0] is False
    assert pays(replace(PLAIN, gap_ms=2.5), 3_001)[0] is True


@pytest.mark.parametrize("model", MEASURED)
@pytest.mark.parametrize("steps", [300, 3_000, 30_000])
def test_runs_that_were_measured_lose_little_by_typical_figures(model, steps):
    """At most 5 % or 3 s of what the better choice takes, by the times of a step and of compiling measured on an H200 in BF16."""
    convolutions, plain_ms, compiled_ms, compile_s = MEASURED[model]
    walls = {False: steps * plain_ms / 1e3, True: steps * compiled_ms / 1e3 + compile_s}
    chosen, _ = pays(replace(typical(convolutions, "bf16"), step_ms=plain_ms), steps)
    assert walls[chosen] <= max(1.05 * min(walls.values()), min(walls.values()) + 3)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return Notebook("model", "device")


def test_what_is_remembered(notebook):
    nothing = Figures(30, 0.25)
    assert notebook.read(nothing) is nothing
    notebook.write(replace(PLAIN, gap_ms=1.0))
    assert Notebook("model", "device").read(nothing) == Figures(30, 0.25, step_ms=50.0, gap_ms=1.0)
    notebook.write(PLAIN, compiled_ms=40.0, compile_s=20.0)
    assert notebook.read(nothing) == Figures(pytest.approx(4.0), pytest.approx(0.2), step_ms=50.0, known=True)
    assert Notebook("model", "another device").read(nothing) is nothing


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"step_ms": 0, "gap_ms": 0, "compiled_ms": null}', '{"step_ms": "x", "gap_ms": 0}']
)
def test_a_damaged_file_is_as_none(notebook, content):
    notebook.path.parent.mkdir()
    notebook.path.write_text(content)
    assert notebook.read(PLAIN) is PLAIN
    notebook.write(PLAIN)
    assert json.loads(notebook.path.read_text())["step_ms"] == 50.0


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    Notebook("model").write(PLAIN)
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("folder", [None, "elsewhere"])
def test_it_lies_in_the_compilers_cache(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if folder is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
    assert str(compilers_cache()) == cache_dir()


def test_a_user_id_without_a_name_as_in_a_container(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("getpass.getuser", lambda: {}["no entry"])
    assert compilers_cache().name == f"torchinductor_uid_{os.getuid()}"
