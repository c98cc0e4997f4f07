"""Checkpoints written beside the training: as the model was when it was saved, whole, and what fails is said."""

import os
import signal
import threading
import time
from collections import OrderedDict

import pytest
import torch
from few_steps import FEW_STEPS
from processes import wait_for
from torch import nn

from mpx.runs import checkpoint_writer
from mpx.runs.checkpoint_writer import CheckpointWriter


def checkpoint(**weights):
    return {"state_dict": OrderedDict(weights), "epoch": 3, "names": ["a"], "size": torch.Size([2])}


def read(path):
    return torch.load(path, weights_only=True)


@pytest.fixture
def slow(monkeypatch):
    """`slow` holds every write back until it is set."""
    go, save = threading.Event(), checkpoint_writer._save

    def held(*args):
        go.wait(30)
        save(*args)

    monkeypatch.setattr(checkpoint_writer, "_save", held)
    return go


def test_holds_what_was_saved_whatever_training_does_meanwhile(tmp_path, slow):
    weight, writer = torch.ones(3, 2, 4, 4).to(memory_format=torch.channels_last), CheckpointWriter()
    writer.save_checkpoint(checkpoint(weight=weight), tmp_path / "new" / "a.ckpt")
    weight.zero_()
    assert not (tmp_path / "new" / "a.ckpt").exists()
    slow.set()
    writer.wait()
    found = read(tmp_path / "new" / "a.ckpt")
    assert torch.equal(found["state_dict"]["weight"], torch.ones(3, 2, 4, 4))
    assert found["state_dict"]["weight"].stride() == weight.stride()
    assert (found["epoch"], found["names"], found["size"]) == (3, ["a"], (2,))


def test_training_has_a_head_start_that_ends_when_somebody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "HEAD_START", 30)
    writer, path = CheckpointWriter(), tmp_path / "a.ckpt"
    for number in range(2):
        writer.save_checkpoint(checkpoint(weight=torch.full([1], number)), path)
        writer.link(tmp_path / "b.ckpt", to=path)
        time.sleep(0.1)
        assert path.exists() == (number > 0)  # the one before
        assert number == 0 or read(path)["state_dict"]["weight"] == number - 1
        began = time.perf_counter()
        writer.wait()
        assert time.perf_counter() - began < 5
        assert read(path)["state_dict"]["weight"] == number
    monkeypatch.setattr(checkpoint_writer, "HEAD_START", 0.01)
    writer.save_checkpoint(checkpoint(weight=torch.full([1], 2)), path)
    wait_for(lambda: read(path)["state_dict"]["weight"] == 2)


def test_whoever_saves_again_waits(tmp_path, slow):
    writer = CheckpointWriter()
    writer.save_checkpoint(checkpoint(weight=torch.zeros(1)), tmp_path / "a.ckpt")
    threading.Timer(0.3, slow.set).start()
    began = time.perf_counter()
    writer.save_checkpoint(checkpoint(weight=torch.ones(1)), tmp_path / "a.ckpt")
    assert time.perf_counter() - began > 0.2
    writer.wait()
    assert read(tmp_path / "a.ckpt")["state_dict"]["weight"] == 1
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_second_name_follows_the_file_without_waiting_for_it(tmp_path, slow):
    writer, best, last = CheckpointWriter(), tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    writer.save_checkpoint(checkpoint(weight=torch.zeros(1)), best)
    writer.link(last, to=best)
    assert not last.exists()
    slow.set()
    writer.wait()
    assert best.samefile(last)
    writer.save_checkpoint(checkpoint(weight=torch.ones(1)), last)
    writer.wait()
    assert [read(path)["state_dict"]["weight"].item() for path in (best, last)] == [0, 1]


def test_second_name_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    writer = CheckpointWriter()
    writer.save_checkpoint(checkpoint(weight=torch.ones(1)), tmp_path / "a.ckpt")
    writer.link(tmp_path / "b.ckpt", to=tmp_path / "a.ckpt")
    writer.wait()
    assert (tmp_path / "a.ckpt").read_bytes() == (tmp_path / "b.ckpt").read_bytes()


def test_ctrl_c_while_waiting_still_waits_in_the_end(tmp_path, slow):
    """Python 3.11's Thread.join, interrupted so, took the thread to be over."""
    writer = CheckpointWriter()
    writer.save_checkpoint(checkpoint(weight=torch.ones(1)), tmp_path / "a.ckpt")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        writer.wait()
    threading.Timer(0.3, slow.set).start()
    writer.teardown()
    assert read(tmp_path / "a.ckpt")["state_dict"]["weight"] == 1


def test_what_a_killed_process_left_goes_and_takes_no_checkpoint_along(tmp_path):
    """Killed when best.ckpt had the second name that was to become last.ckpt: writing to that would have ruined best.ckpt."""
    writer, best, last = CheckpointWriter(), tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    writer.save_checkpoint(checkpoint(weight=torch.zeros(1)), best)
    writer.wait()
    os.link(best, tmp_path / f".last.ckpt{checkpoint_writer.PART}")
    (tmp_path / f".best.ckpt{checkpoint_writer.PART}").write_bytes(b"half")
    writer.save_checkpoint(checkpoint(weight=torch.ones(1)), last)
    writer.wait()
    assert [read(path)["state_dict"]["weight"].item() for path in (best, last)] == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt"]


def test_failure_is_raised_once_and_leaves_nothing(tmp_path, capsys):
    (tmp_path / "a.ckpt").mkdir()  # a folder in the way
    writer = CheckpointWriter()
    writer.save_checkpoint(checkpoint(weight=torch.ones(1)), tmp_path / "a.ckpt")
    writer.link(tmp_path / "b.ckpt", to=tmp_path / "a.ckpt")
    writer.teardown()  # as after another failure
    assert "the newest checkpoint was not written (" in capsys.readouterr().err
    with pytest.raises(OSError, match="directory"):
        writer.wait()
    writer.wait()
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_tied_weights_and_versions_stay(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm, self.two = nn.Linear(64, 64, bias=False), nn.BatchNorm1d(2), nn.Linear(64, 64, bias=False)
            self.two.weight = self.one.weight

    writer, state = CheckpointWriter(), Tied().state_dict()
    writer.save_checkpoint({"state_dict": state}, tmp_path / "a.ckpt")
    writer.wait()
    found = read(tmp_path / "a.ckpt")["state_dict"]
    assert found["one.weight"].data_ptr() == found["two.weight"].data_ptr()
    assert found._metadata == state._metadata


def test_last_is_another_name_of_a_best_of_the_same_step(train):
    ran = train("model=mlp", *FEW_STEPS)
    best, last = (ran.folder / "checkpoints" / name for name in ("best.ckpt", "last.ckpt"))
    assert best.samefile(last)
    assert read(last)["callbacks"].keys() > {"RandomState"}


def test_ctrl_c_while_its_thread_starts(tmp_path, monkeypatch):
    """The pool would not know of the thread, so nobody would wait for the file, and Python would wait for the thread for ever."""
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        signal.raise_signal(signal.SIGINT)

    writer, path = CheckpointWriter(), tmp_path / "last.ckpt"
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.save_checkpoint(checkpoint(w=torch.ones(2)), path)
    writer.wait()
    assert torch.equal(read(path)["state_dict"]["w"], torch.ones(2))
