"""deploy.json: a row of each command, also of several at once."""

import os
import threading
from contextlib import suppress

import pytest
from filelock import FileLock, Timeout

from mpx.deploy import card, record
from mpx.errors import UserError
from mpx.runs.folder import LOCK


def row(**parts):
    return {"format": "fp16", "weights": "dense", "device": "cpu", "checkpoint_sha256": "ab", "finetune": None, "exports": {}} | parts


def test_two_commands_at_once_keep_both_rows(tmp_path, monkeypatch):
    """Each reads the rows before the other has written its own."""
    write, both = record.write_whole, threading.Barrier(2)

    def slowly(path, content):
        with suppress(threading.BrokenBarrierError):  # with the lock no second one comes
            both.wait(0.5)
        write(path, content)

    monkeypatch.setattr(record, "write_whole", slowly)
    commands = [threading.Thread(target=record.add_row, args=(tmp_path, row(format=name))) for name in ("fp16", "int8")]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    assert sorted(found["format"] for found in record.rows_of(tmp_path)) == ["fp16", "int8"]


ONNX, PT2 = ({"file": f"served/fp16-dense-cpu/model.{kind}", "bytes": 5} for kind in ("onnx", "pt2"))


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, {"onnx": ONNX}),
        ({"exports": {"onnx": ONNX | {"bytes": 6}}}, {"onnx": ONNX | {"bytes": 6}}),
        ({"checkpoint_sha256": "cd"}, {}),
        ({"finetune": {"epochs": 1, "kept": True}}, {}),
        ({"quantised_layers": ["fc"]}, {}),
        ({"config": {"model": {}}}, {}),
        ({"format": "bf16"}, {}),
    ],
)
def test_exports_stay_as_long_as_their_files_and_their_weights(tmp_path, change, kept):
    """Of the two files one was removed."""
    record.add_row(tmp_path, row(exports={"onnx": ONNX, "pt2": PT2}))
    (tmp_path / ONNX["file"]).parent.mkdir(parents=True)
    (tmp_path / ONNX["file"]).write_text("12345")
    record.add_row(tmp_path, row(**change))
    assert record.rows_of(tmp_path)[-1]["exports"] == kept


@pytest.mark.parametrize("exports", [None, ["a"], {"onnx": "a"}, {"onnx": {"file": ["a"]}}])
def test_exports_that_mpx_did_not_write_do_not_stay(tmp_path, exports):
    record.add_row(tmp_path, row(exports=exports))
    record.add_row(tmp_path, row())
    assert record.rows_of(tmp_path) == [row()]


def test_a_folder_that_another_process_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MAX_WAIT_S", 0.1)
    with FileLock(tmp_path / LOCK), pytest.raises(UserError) as refused:
        record.add_row(tmp_path, row())
    assert str(refused.value) == f"{tmp_path} is in use by another process, so deploy.json is not written. Wait for that, then repeat."
    assert record.rows_of(tmp_path) == []


def test_the_card_is_written_from_rows_that_no_other_command_changes_meanwhile(tmp_path, monkeypatch):
    """The card of the last command has the rows of all."""
    locked = []

    def text(folder, record):
        with pytest.raises(Timeout):
            FileLock(folder / LOCK, timeout=0).acquire()
        locked.append(folder)
        return "text"

    monkeypatch.setattr(card, "card", text)
    card.write_card(tmp_path, {})
    assert ((tmp_path / "card.md").read_text(), locked) == ("text", [tmp_path])


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("served", 0o555, r"served \(Permission denied\)\. Change that, or give another folder: run= of a copy of"),
        ("deploy.json", 0, r"deploy\.json cannot be read \(Permission denied\), so no row can be added to it\. Allow reading it\.$"),
    ],
)
def test_what_may_not_be_used_is_refused_before_measuring(tmp_path, name, mode, message):
    record.add_row(tmp_path, row())
    (tmp_path / "served").mkdir()
    (tmp_path / name).chmod(mode)
    if os.access(tmp_path / name, os.W_OK):
        pytest.skip("root may write everywhere")
    with pytest.raises(UserError, match=message):
        record.check_writable(tmp_path, [], ["served"])
    (tmp_path / name).chmod(0o755)


def test_a_lock_that_cannot_be_taken_is_refused_before_measuring(tmp_path):
    record.check_writable(tmp_path)
    (tmp_path / LOCK).mkdir()
    with pytest.raises(UserError, match="cannot be written there"):
        record.check_writable(tmp_path)
