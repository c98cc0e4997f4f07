"""deploy.json: a row of each command, also of several at once."""

import threading
from contextlib import suppress

import pytest
from filelock import FileLock

from mpx.deploy import record
from mpx.errors import UserError
from mpx.runs.folder import LOCK


def row(**parts):
    return {"format": "fp16", "weights": "dense", "device": "cpu"} | parts


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


def test_a_folder_that_another_process_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MAX_WAIT_S", 0.1)
    with FileLock(tmp_path / LOCK), pytest.raises(UserError) as refused:
        record.add_row(tmp_path, row())
    assert str(refused.value) == f"{tmp_path} is in use by another process, so deploy.json has no new row. Wait for it, then repeat."
    assert record.rows_of(tmp_path) == []


def test_a_lock_that_cannot_be_taken_is_refused_before_measuring(tmp_path):
    record.check_writable(tmp_path)
    (tmp_path / LOCK).mkdir()
    with pytest.raises(UserError, match="cannot be written there"):
        record.check_writable(tmp_path)
