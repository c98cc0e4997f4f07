"""Environment variables between the processes of one command: all in one file, and read as they were written."""

import os
from pathlib import Path

import pytest

import mpx
from mpx import environment_variables


def test_no_other_file_names_a_variable():
    package = Path(mpx.__file__).parent
    names = [value for value in vars(environment_variables).values() if isinstance(value, str) and value.startswith("MPX_")]
    assert len(names) == 9
    naming = {path.name for path in package.rglob("*.py") for name in names if f'"{name}"' in path.read_text()}
    assert naming == {"environment_variables.py"}
    assert all(f"| {name} " in environment_variables.__doc__ for name in names)


@pytest.mark.parametrize("resume_from", [Path("a folder") / "last.ckpt", None])
def test_ranks_read_what_rank_0_has_decided(monkeypatch, resume_from):
    monkeypatch.setattr(os, "environ", {})
    assert environment_variables.shared_run() is None
    environment_variables.share_run(Path("earlier"), Path("earlier.ckpt"))
    environment_variables.share_run(Path("a folder"), resume_from)
    assert environment_variables.shared_run() == (Path("a folder"), resume_from)
    assert environment_variables.rank_0() == os.getpid()


def test_a_job_knows_its_sweep(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"HYDRA_FULL_ERROR": "1"})
    assert environment_variables.report_file() is None
    environment_variables.start_sweep()
    environment_variables.let_hydra_raise()
    os.environ |= environment_variables.for_job(tmp_path / "report.json")
    assert environment_variables.report_file() == tmp_path / "report.json"
    assert environment_variables.parent_process() == os.getpid()
    assert environment_variables.sweep_name().endswith(f"-{os.getpid()}")
    assert environment_variables.shows_traceback()


@pytest.mark.parametrize("users", [{}, {"MPX_TRACEBACK": "1"}, {"HYDRA_FULL_ERROR": "1"}])
def test_a_job_gets_the_users_wish_for_tracebacks(monkeypatch, users):
    monkeypatch.setattr(os, "environ", dict(users))
    for _ in ("the sweep", "its job"):
        environment_variables.let_hydra_raise()
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        assert environment_variables.shows_traceback() is bool(users)
        os.environ |= environment_variables.for_job(Path("report.json"))
        assert os.environ["HYDRA_FULL_ERROR"] == ("1" if users else "0")


@pytest.mark.parametrize("users", [{}, {"CUDA_VISIBLE_DEVICES": "2,3"}])
def test_a_worker_sees_the_users_gpus(monkeypatch, users):
    monkeypatch.setattr(os, "environ", dict(users))
    environment_variables.start_sweep()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as submitit's local launcher does
    environment_variables.show_users_gpus()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == users.get("CUDA_VISIBLE_DEVICES")
