"""deploy.json: a row of each command, also of several at once."""

import threading
from contextlib import suppress

import pytest

from mpx.deploy import record
from mpx.errors import UserError


def row(**parts):
    return {
        "format": "fp16",
        "weights": "dense",
        "device": "cpu",
        "exports": {},
    } | parts


def test_two_commands_at_once_keep_both_rows(tmp_path, monkeypatch):
    """Each reads the rows before the other has written its own."""
    write, both = record.write_whole, threading.Barrier(2)

    def slowly(path, content):
        with suppress(threading.BrokenBarrierError):  # with the lock no second one comes
            both.wait(0.5)
        write(path, content)

    monkeypatch.setattr(record, "write_whole", slowly)
    commands = [
        threading.Thread(target=record.add_row, args=(tmp_path, row(format=name)))
        for name in ("fp16", "int8")
    ]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    assert sorted(found["format"] for found in record.rows_of(tmp_path)) == ["fp16", "int8"]


@pytest.mark.parametrize(("change", "rows"), [({"exports": {"pt2": "new"}}, 1), ({"format": "bf16"}, 2)])
def test_a_row_of_the_same_format_weights_and_device_is_replaced(tmp_path, change, rows):
    record.add_row(tmp_path, row(exports={"onnx": "old"}))
    record.add_row(tmp_path, row(**change))
    assert len(record.rows_of(tmp_path)) == rows
    assert record.rows_of(tmp_path)[-1] == row(**change)


@pytest.mark.parametrize("make", [lambda path: path.write_text("[]"), lambda path: path.mkdir()])
def test_a_file_that_mpx_did_not_write_is_refused_before_measuring(tmp_path, make):
    make(tmp_path / "deploy.json")
    with pytest.raises(UserError, match=r"deploy\.json cannot be read, or was not written by mpx\."):
        record.check_writable(tmp_path)
