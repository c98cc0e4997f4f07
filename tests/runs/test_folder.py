"""Which folder a run gets, for every if_exists and every state that it can find."""

import json
import zipfile
from unittest.mock import patch

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from mpx.errors import InUse, UserError
from mpx.record.result import write_result
from mpx.runs import folder as folders
from mpx.runs.folder import claim
from mpx.runs.name import differences, setting_name
from mpx.settings.front_door import CONF

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


@pytest.mark.parametrize("if_exists", ["resume", "skip"])
def test_a_record_that_cannot_be_read_may_be_of_a_finished_run(setting, if_exists):
    path = leave(start(setting), "completed", checkpoint=True).path
    (path / "result.json").unlink()
    (path / "result.json").symlink_to("result.json")  # in a loop, which not even root can read
    message = (
        r"seed0/result\.json cannot be read \(Too many levels of symbolic links\), so how its run ended is unknown\. Allow reading it\."
    )
    with pytest.raises(UserError, match=message):
        start(setting, if_exists)
    assert (path / "result.json").is_symlink()


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
    with pytest.raises(UserError, match=r"was started with optimizer.lr=0.1, this command has optimizer.lr=0.2"):
        start(setting, "resume", config=CONFIG | {"optimizer.lr": 0.2})


def test_skip_refuses_a_cut_off_run(setting):
    leave(start(setting), "interrupted")
    for _ in range(2):  # the first has released the lock
        with pytest.raises(UserError, match="its run was cut off"):
            start(setting, "skip")


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


def test_a_run_that_does_not_begin_leaves_everything_as_it_was(setting, tmp_path):
    start(setting).abandon()
    assert list(tmp_path.iterdir()) == []
    folder = leave(start(setting), "completed")
    before = sorted(entry.name for entry in folder.path.iterdir())
    start(setting, "overwrite").abandon()
    start(setting, "new").abandon()
    assert [path.name for path in setting.iterdir()] == ["seed0"]
    assert sorted(entry.name for entry in folder.path.iterdir()) == before
    start(setting, "overwrite").abandon()  # its lock was given back


@pytest.mark.parametrize("if_exists", ["resume", "overwrite", "skip"])
def test_a_folder_in_use_is_refused(setting, if_exists):
    running = start(setting)
    (running.path / "config.yaml").write_text(yaml.safe_dump({"comparable": CONFIG}))
    with pytest.raises(UserError, match="in use by another process"):
        start(setting, if_exists)


def test_checkpoint_of_the_same_setting_continues_in_its_folder(setting):
    folder = leave(start(setting), "interrupted", checkpoint=True)
    again = start(setting, ckpt=str(folder.path / "checkpoints" / "last.ckpt"))
    assert again.path == folder.path


def test_overwrite_spares_the_checkpoint_that_it_should_continue(setting):
    folder = leave(start(setting), "completed", checkpoint=True)
    with pytest.raises(UserError, match="lies in the folder that if_exists=overwrite would empty"):
        start(setting, "overwrite", ckpt=str(folder.path / "checkpoints" / "last.ckpt"))


@pytest.mark.parametrize(
    "record",
    [
        '{"status": "completed", "speed": 5}',
        '{"status": "completed", "data": 5}',
        '{"status": "failed", "speed": null}',
        '{"status": []}',
        '{"status": "comp',
    ],
)
def test_a_damaged_record_counts_as_none(setting, record):
    first = leave(start(setting), checkpoint=True)
    (first.path / "result.json").write_text(record)
    again = start(setting, "resume")
    assert (again.finished, again.resume_from.name) == (None, "last.ckpt")


def test_record_is_written_whole_and_without_nan(tmp_path):
    write_result(tmp_path, {"status": "diverged", "metrics": {"val/loss": float("nan"), "list": [float("inf"), 1.5]}})
    record = json.loads((tmp_path / "result.json").read_text())
    assert record == {"schema_version": 1, "status": "diverged", "metrics": {"val/loss": None, "list": [None, 1.5]}}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "resnet20-digits-amp-2of4"),
        ({"optimizer.lr": 0.05, "data.batch_size": 32}, "resnet20-digits-amp-2of4-data.batch_size=32-optimizer.lr=0.05"),
        ({"optimizer": "adamw"}, "resnet20-digits-amp-2of4-optimizer=adamw"),
    ],
)
def test_setting_name(changed, name):
    assert setting_name({"model": "resnet20", "data": "digits", "precision": "amp", "sparsity": "2of4"}, changed) == name


def test_arguments_of_a_constructor_have_a_name_each():
    words = [
        "data=custom",
        "data._target_=mine.make",
        "+data.kwargs.size=512",
        "model=custom",
        "model._target_=mine.Net",
        "+model.kwargs.n=3",
    ]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        HydraConfig.instance().set_config(compose("train", words, return_hydra_config=True))
        found = differences(compose("train", words))
    assert found == {"data._target_": "mine.make", "data.kwargs.size": 512, "model._target_": "mine.Net", "model.kwargs.n": 3}


def test_long_and_unsafe_setting_names_stay_apart():
    chosen = {"model": "custom", "data": "digits", "precision": "amp", "sparsity": "2of4"}
    names = {setting_name(chosen, {"data.path": "/a/" + "b" * 300 + str(i)}) for i in range(3)}
    names |= {setting_name(chosen, {"data.path": path}) for path in ("a/b", "a_b", "a b")}
    assert len(names) == 6
    assert all(len(name) <= 150 and "/" not in name and " " not in name for name in names)


@pytest.mark.parametrize("long", ["", "b" * 300])
@pytest.mark.parametrize(("one", "same"), [(1, 1.0), (16777216, 16777216.0), ([1, 2], [1.0, 2.0])])
def test_a_number_that_is_typed_in_two_ways_is_one_setting(one, same, long):
    chosen = {"model": "custom", "data": "digits", "precision": "amp", "sparsity": "2of4"}
    first, second = (setting_name(chosen, {"data.path": long, "model.kwargs.n": value}) for value in (one, same))
    assert first == second


def test_two_sweeps_never_train_one_run_twice(setting):
    """The second finds the folder, or looks for it before the first has made it, or locks it just after the first has finished."""
    first = start(setting, sweep=True)
    with pytest.raises(InUse, match=r"seed0 is in use by another process"):
        start(setting, sweep=True)
    first.lock.release()
    with patch("mpx.runs.folder._newest", lambda *_: None), pytest.raises(InUse, match=r"seed0 is in use by another process"):
        start(setting, sweep=True)
    assert [path.name for path in setting.iterdir()] == ["seed0"]
    locked = folders.locked

    def finished_meanwhile(path):
        write_result(path, {"status": "completed"})
        return locked(path)

    with patch("mpx.runs.folder.locked", finished_meanwhile):
        assert start(setting, sweep=True).finished["status"] == "completed"
    assert locked(setting / "seed0").lock.is_locked
