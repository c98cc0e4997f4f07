"""Which folder a run gets, for every if_exists and every state that it can find."""

import json
import zipfile
from unittest.mock import patch

import pytest
import yaml

from mpx.errors import InUse, UserError
from mpx.runs import folder as folders
from mpx.runs.folder import claim
from mpx.runs.name import setting_name
from mpx.runs.result import write_result

CONFIG = {"optimizer.lr": 0.1, "data.batch_size": 64}


def start(setting, if_exists="auto", *, sweep=False, ckpt=None, config=CONFIG):
    return claim(setting, 0, if_exists, config, in_sweep=sweep, ckpt_path=ckpt)


def leave(folder, status=None, checkpoint=False, config=CONFIG):
    """Pretend that a run in `folder` stopped here."""
    folder.lock.release()
    (folder.path / "config.yaml").write_text(yaml.safe_dump({"comparable": config}))
    if status:
        write_result(folder.path, {"status": status})
    if checkpoint:
        (folder.path / "checkpoints").mkdir(exist_ok=True)
        with zipfile.ZipFile(folder.path / "checkpoints" / "last.ckpt", "w") as archive:
            archive.writestr("x", "x")
    return folder


@pytest.fixture
def setting(tmp_path):
    return tmp_path / "study" / "setting"


def test_new_runs_stand_side_by_side(setting):
    assert [leave(start(setting)).path.name for _ in range(3)] == ["seed0", "seed0-2", "seed0-3"]


def test_auto_in_a_sweep_leaves_finished_runs_and_resumes_cut_off_ones(setting):
    leave(start(setting), "completed")
    assert start(setting, sweep=True).finished["status"] == "completed"
    leave(start(setting, "new"), "interrupted", checkpoint=True)
    folder = start(setting, sweep=True)
    assert (folder.path.name, folder.resume_from.name) == ("seed0-2", "last.ckpt")


def test_resume_of_a_finished_run_leaves_it(setting):
    leave(start(setting), "completed", checkpoint=True)
    assert start(setting, "resume").finished["status"] == "completed"


def test_a_failed_run_is_skipped_by_a_sweep_and_continued_on_request(setting):
    leave(start(setting), "failed", checkpoint=True)
    assert start(setting, sweep=True).finished["status"] == "failed"
    resumed = start(setting, "resume")
    assert resumed.resume_from.name == "last.ckpt"
    for how in ({"sweep": True}, {"if_exists": "skip"}):  # the record is still that of the failure
        with pytest.raises(InUse, match="is in use by another process"):
            start(setting, **how)
    resumed.lock.release()
    assert start(setting, "skip").finished["status"] == "failed"


def test_another_configuration_is_refused_by_key(setting):
    leave(start(setting), "completed")
    with pytest.raises(
        UserError,
        match=r"was started with optimizer.lr=0.1, this command has "
        r"optimizer.lr=0.2",
    ):
        start(setting, "resume", config=CONFIG | {"optimizer.lr": 0.2})


def test_error(setting):
    leave(start(setting))
    with pytest.raises(UserError, match=r"is already there \(if_exists=error\)"):
        start(setting, "error")


def test_overwrite_empties_the_folder(setting):
    folder = leave(start(setting), "completed", checkpoint=True)
    again = start(setting, "overwrite")
    assert again.path == folder.path
    assert again.resume_from is None
    assert (again.path / "result.json").is_file()  # until training begins
    again.begin("new")
    assert sorted(entry.name for entry in again.path.iterdir()) == [".lock", "config.yaml"]
    assert (again.path / "config.yaml").read_text() == "new"


@pytest.mark.parametrize("if_exists", ["resume", "overwrite", "skip"])
def test_a_folder_in_use_is_refused(setting, if_exists):
    running = start(setting)
    (running.path / "config.yaml").write_text(yaml.safe_dump({"comparable": CONFIG}))
    with pytest.raises(UserError, match="in use by another process"):
        start(setting, if_exists)


def test_record_is_written_whole_and_without_nan(tmp_path):
    write_result(
        tmp_path, {"status": "diverged", "metrics": {"val/loss": float("nan"), "list": [float("inf"), 1.5]}}
    )
    record = json.loads((tmp_path / "result.json").read_text())
    assert record == {
        "schema_version": 1,
        "status": "diverged",
        "metrics": {"val/loss": None, "list": [None, 1.5]},
    }
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "resnet20-digits-amp-2of4"),
        (
            {"optimizer.lr": 0.05, "data.batch_size": 32},
            "resnet20-digits-amp-2of4-data.batch_size=32-optimizer.lr=0.05",
        ),
        ({"optimizer": "adamw"}, "resnet20-digits-amp-2of4-optimizer=adamw"),
    ],
)
def test_setting_name(changed, name):
    assert (
        setting_name({"model": "resnet20", "data": "digits", "precision": "amp", "sparsity": "2of4"}, changed)
        == name
    )


def test_two_sweeps_never_train_one_run_twice(setting):
    """The second finds the folder, or looks for it before the first has made it, or locks it just after the
    first has finished.
    """
    first = start(setting, sweep=True)
    with pytest.raises(InUse, match=r"seed0 is in use by another process"):
        start(setting, sweep=True)
    first.lock.release()
    with (
        patch("mpx.runs.folder._newest", lambda *_: None),
        pytest.raises(
            InUse,
            match=r"seed0 is in use "
            r"by another process",
        ),
    ):
        start(setting, sweep=True)
    assert [path.name for path in setting.iterdir()] == ["seed0"]
    locked = folders.locked

    def finished_meanwhile(path):
        write_result(path, {"status": "completed"})
        return locked(path)

    with patch("mpx.runs.folder.locked", finished_meanwhile):
        assert start(setting, sweep=True).finished["status"] == "completed"
    assert locked(setting / "seed0").lock.is_locked
