"""What is recorded of the environment, and what is not."""

import json
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mpx
from mpx.measure.devices import devices
from mpx.measure.environment import command, environment
from mpx.measure.exclusive import CpuUse, ExclusivityChecks, _cpu_ticks_of, exclusive, exclusive_among
from mpx.system.version import parse_status

NAMES = [
    "mpx",
    "git",
    "git_dirty",
    "python",
    "torch",
    "cuda",
    "cudnn",
    "torchvision",
    "lightning",
    "transformers",
    "os",
    "cpu",
    "host",
    "cores",
    "threads",
    "ram_gib",
    "device",
    "compute_capability",
    "driver",
    "command",
    "started_at",
]


def test_everything_is_there_or_has_a_reason():
    found = environment()
    json.dumps(found)
    assert set(NAMES) <= set(found)
    for name in NAMES:
        if found[name] is None:
            assert found["git_reason" if name == "git_dirty" else f"{name}_reason"]
    assert re.fullmatch(rf"{re.escape(mpx.__version__)}\+[0-9a-f]{{8}}", found["mpx"])
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["started_at"])
    del found["command"]  # may hold paths that the user typed
    assert socket.gethostname() not in found.values()


@pytest.mark.parametrize(
    ("used", "names"), [("auto", "ABC"), (2, "ABC"), ([2], "CAB"), ([1, 0], "BAC")], ids=str
)
def test_the_gpus_of_the_run_come_first(monkeypatch, used, names):
    """The first is the one whose speed was measured, and one machine may have several kinds."""
    for name, answer in (
        ("is_available", lambda: True),
        ("device_count", lambda: 3),
        ("get_device_name", "ABC".__getitem__),
    ):
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (i, 0))
    found = devices(used)
    assert found["device"] == list(names)
    assert found["compute_capability"] == [f"{'ABC'.index(name)}.0" for name in names]


def test_hosts_are_told_apart(monkeypatch, tmp_path):
    found = []
    for boot in ("one", "one", "another"):
        (tmp_path / "boot_id").write_text(boot)
        monkeypatch.setattr("mpx.measure.environment.BOOT", tmp_path / "boot_id")
        found.append(environment()["host"])
    assert found[0] == found[1] != found[2]


def test_command_can_be_pasted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/mpx/train.py", "model=lstm", "model.widths=[1, 2]"])
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="mpx.train")))
    assert shlex.split(command()) == ["python", "-m", "mpx.train", "model=lstm", "model.widths=[1, 2]"]
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None))
    assert command().startswith("python /somewhere/mpx/train.py")


@pytest.mark.parametrize(
    ("output", "commit", "dirty"),
    [
        ("# branch.oid abc123\n# branch.head main\n", "abc123", False),
        (
            "# branch.oid abc123\n# branch.head main\n1 .M N... 100644 100644 100644 aa bb mpx/train.py\n",
            "abc123",
            True,
        ),
        ("# branch.oid (initial)\n# branch.head main\n", None, None),
    ],
)
def test_git_status(output, commit, dirty):
    found = parse_status(output)
    assert (found["git"], found["git_dirty"]) == (commit, dirty)


@pytest.mark.parametrize(("used", "alone"), [(0.049, True), (0.05, False), (None, None)])
def test_a_speed_on_a_cpu_counts_while_others_use_little_of_it(used, alone):
    counts, reason = ExclusivityChecks(torch.device("cpu")).verdict(used)
    assert counts is alone
    assert (reason is None) == (alone is True)


@pytest.mark.parametrize(
    ("processes", "ours", "expected"),
    [
        ([], {1}, True),  # hidden, or no context yet
        ([1], {1, 2}, True),
        ([1, 2], {1, 2}, True),  # ranks of one run
        ([1, 9], {1, 2}, False),
        ([77], {1}, True),  # ours under another namespace's number
        ([77, 78], {1}, None),
    ],
)
def test_who_else_uses_the_device(processes, ours, expected):
    alone, reason = exclusive_among(processes, ours)
    assert alone is expected
    assert (reason is None) == (expected is True and processes != [77])


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's account of its CPU time")
def test_what_other_programs_use_is_told_from_what_this_one_and_its_children_use():
    # A grandchild whose parent has ended is another program.
    burning = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    other = int(subprocess.run(["sh", "-c", burning], stdout=subprocess.PIPE, text=True).stdout)
    try:
        use, began, of_other, used = CpuUse(), time.monotonic(), _cpu_ticks_of(other), os.times()
        burn = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
        subprocess.run([sys.executable, "-c", burn])
        share, whole = use.by_others(), (time.monotonic() - began) * len(os.sched_getaffinity(0))
        ours = sum(os.times()[:4]) - sum(used[:4])
        of_other = (_cpu_ticks_of(other) - of_other) / os.sysconf("SC_CLK_TCK")
    finally:
        os.kill(other, signal.SIGKILL)
    assert min(ours, of_other) > 0.2
    assert of_other / whole - 0.02 < share < 1 - ours / whole + 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_described():
    torch.ones(1, device="cuda")
    found = environment()
    assert found["device"]
    assert re.fullmatch(r"\d+\.\d+", found["compute_capability"][0])
    alone, reason = exclusive(torch.device("cuda"))
    assert alone is not None or reason
