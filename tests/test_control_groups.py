"""The limits of a container, of Slurm and of systemd count where they are lower than what the machine has."""

import json
import os

import pytest
import torch
from few_steps import FEW_STEPS
from started import start

from mpx.bench.__main__ import main as bench
from mpx.deploy import backends
from mpx.deploy.__main__ import main as deploy
from mpx.doctor.__main__ import main as doctor
from mpx.system import machine
from mpx.system.machine import GIB, keep_within_quota, memory_bytes, usable_cores

ALL = 9223372036854771712  # what version 1 says without a limit
V2, V1 = "0::/", "3:memory:/\n2:cpu,cpuacct:/\n0::/"
SLURM = "system.slice/slurmstepd.scope/job_7"
# /proc/self/cgroup; files below /sys/fs/cgroup; bytes; cores' time
GROUPS = {
    "docker": (V2, {"memory.max": f"{GIB}\n", "cpu.max": "150000 100000\n"}, GIB, 1.5),
    "without a limit": (V2, {"memory.max": "max\n", "cpu.max": "max 100000\n"}, None, None),
    "controllers are off": (V2, {}, None, None),
    "Slurm limits the job": (
        f"0::/{SLURM}/step_0/user",
        {f"{SLURM}/memory.max": f"{GIB}", f"{SLURM}/step_0/memory.max": "max",
        f"{SLURM}/step_0/user/cpu.max": "max 1"}, GIB, None,
    ),
    "the lowest": (f"0::/{SLURM}", {"system.slice/memory.max": f"{GIB}", f"{SLURM}/memory.max": f"{2 * GIB}"},
    GIB, None),
    "version 1": (
        V1, {"memory/memory.limit_in_bytes": f"{GIB}\n", "cpu/cpu.cfs_quota_us": "50000\n",
        "cpu/cpu.cfs_period_us": "100000\n"}, GIB, 0.5,
    ),
    "version 1 without a limit": (
        V1, {"memory/memory.limit_in_bytes": f"{ALL}", "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000"}, ALL, None,
    ),
    "version 1, with the host's name for the group": ("4:memory:/docker/f9b1",
    {"memory/memory.limit_in_bytes": f"{GIB}"}, GIB, None),
    "above the container's root": ("0::/../other", {"memory.max": f"{GIB}"}, GIB, None),
    "not Linux": (None, {}, None, None),
}  # fmt: skip


@pytest.fixture
def within(monkeypatch, tmp_path):
    """within(membership, files): this process is in such groups."""

    def put(membership, files):
        if membership is not None:
            (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            (tmp_path / "mounted" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "mounted" / name).write_text(text)
        monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "membership")
        monkeypatch.setattr(machine, "MOUNTED", tmp_path / "mounted")

    return put


@pytest.mark.parametrize("name", GROUPS)
def test_limits(within, name):
    membership, files, memory, cores = GROUPS[name]
    within(membership, files)
    assert machine.memory_limit() == memory
    assert machine.cpu_quota() == cores


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_the_lower_of_machine_and_limit_counts(within):
    cores, memory = len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    within(V2, {"memory.max": f"{memory - 1}", "cpu.max": "50000 100000"})
    assert (usable_cores(), memory_bytes()) == (1, memory - 1)
    within(V2, {"memory.max": f"{memory + 1}", "cpu.max": f"{(cores + 1) * 100000} 100000"})
    assert (usable_cores(), memory_bytes()) == (cores, memory)


@pytest.fixture
def two_threads(monkeypatch):
    """As where neither the user nor these tests have chosen a number of threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the test leaves
        monkeypatch.delenv(name)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


ONE_CORE = {"cpu.max": "50000 100000"}


def test_a_run_and_what_measures_it_have_no_more_threads_than_cores_time(
    within, two_threads, train, tmp_path, monkeypatch
):
    within(V2, ONE_CORE)
    ran = train("model=mlp", *FEW_STEPS)
    assert ran.record["environment"]["threads"] == 1
    monkeypatch.setattr(backends, "BUDGET_S", 0.02)
    deployed = start_anew(
        monkeypatch, deploy, tmp_path, f"run={ran.folder}", "accelerator=cpu", "backend=eager", "batch=1"
    )
    assert "served on" in deployed.out
    assert json.loads((ran.folder / "deploy.json").read_text())["rows"][0]["environment"]["threads"] == 1
    start_anew(monkeypatch, bench, tmp_path, "what=formats", "accelerator=cpu", "size=64")
    assert (
        json.loads((tmp_path / "outputs" / "bench" / "formats.json").read_text())["environment"]["threads"]
        == 1
    )
    assert "1 core, threads of PyTorch: 1 " in start_anew(monkeypatch, doctor, tmp_path).words


def start_anew(monkeypatch, main, *words):
    """As a process of its own, which has two threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    return start(main, *words)


@pytest.mark.parametrize(
    ("files", "variables", "processes", "threads"),
    [
        (ONE_CORE, {}, 1, 1),
        ({"cpu.max": "200000 100000"}, {}, 2, 1),
        ({"cpu.max": "max 100000"}, {}, 2, 2),
        ({"cpu.max": "900000000 100000"}, {}, 1, min(2, usable_cores())),
        (ONE_CORE, {"OMP_NUM_THREADS": "2"}, 1, 2),
        (ONE_CORE, {"MKL_NUM_THREADS": "2"}, 1, 2),
    ],
)
def test_threads_are_fewer_only_by_a_quota_and_where_nobody_chose(
    within, two_threads, monkeypatch, files, variables, processes, threads
):
    within(V2, files)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    keep_within_quota(processes)
    assert torch.get_num_threads() == threads
    assert os.environ.get("OMP_NUM_THREADS") == variables.get(
        "OMP_NUM_THREADS", "1" if threads == 1 else None
    )
