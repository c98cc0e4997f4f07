"""What Ctrl-C and SIGTERM do to a loop in an mpx.Recorder."""

import json
import os
import signal
import subprocess
import time

import pytest
from processes import forks, wait_for
from recorded_loops import SETTING, train
from torch import nn
from torch.utils.data import DataLoader

import mpx


def _trains_until_told(folder):
    """A fork of it ends as it would without a Recorder."""
    with mpx.Recorder(setting=SETTING, study="mine", output_dir=folder) as run:
        if (child := os.fork()) == 0:
            time.sleep(100)
            os._exit(0)
        train(run, nn.Linear(16, 8))
        os.kill(child, signal.SIGTERM)
        (folder / "child").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        train(run, nn.Linear(16, 8), 10**9)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_python_drops_ends_the_loop_with_the_next_step(recorder):
    class Garbage:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit), recorder() as run:  # noqa: PT012
            Garbage()
            train(run, nn.Linear(16, 8))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_that_is_told_to_go_leaves_its_record(tmp_path):
    process = forks.Process(target=_trains_until_told, args=(tmp_path,))
    process.start()
    wait_for((tmp_path / "child").exists)
    process.terminate()
    process.join(60)
    assert process.exitcode == 143
    (record,) = tmp_path.glob("mine/*/seed0/result.json")
    assert json.loads(record.read_text())["status"] == "interrupted"
    assert (tmp_path / "child").read_text() == str(-signal.SIGTERM)


def _a_worker_is_told_first(folder):
    with mpx.Recorder(setting=SETTING, study="mine", output_dir=folder) as run:
        batches = iter(DataLoader(range(100), num_workers=2, multiprocessing_context="fork"))
        train(run, nn.Linear(16, 8))
        worker = batches._workers[0]
        # to PyTorch, SIGTERM from its parent is no error
        subprocess.run(["kill", str(worker.pid)], check=True)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        list(batches)


def test_a_signal_that_reaches_a_loaders_worker_first_interrupts(tmp_path):
    """As from Slurm, `timeout` and a terminal."""
    process = forks.Process(target=_a_worker_is_told_first, args=(tmp_path,))
    process.start()
    process.join(60)
    (record,) = tmp_path.glob("mine/*/seed0/result.json")
    assert json.loads(record.read_text())["status"] == "interrupted"
