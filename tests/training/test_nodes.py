"""Two machines train as one: two torchrun agents on loopback, each with one process."""

import json
import os
import signal
import socket

import processes
import pytest
from processes import Fork
from refused import assert_refused

from mpx.errors import UserError
from mpx.system.launch import SRUN, TORCHRUN, Launch, check_layout, launch

SHORT = ["trainer.accelerator=cpu", "data.augment=none", "trainer.progress=off", "trainer.warmup_steps=1"]
FAILS_ON_ONE = """
import os
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        if os.environ.get("RANK") == "1" and self.calls == 5:
            {what}
        return self.layer(x.flatten(1))
"""


@pytest.fixture
def unused_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Nodes:
    """`torchrun --nnodes=2` on each of two machines, which are this one."""

    def __init__(self, folder, port, *words):
        address = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}")
        path = {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
        self.agents = [
            Fork(
                *address,
                f"--node-rank={rank}",
                "-m",
                "mpx.train",
                *SHORT,
                *words,
                folder=folder,
                env=path,
                script=processes.TORCHRUN,
            )
            for rank in (0, 1)
        ]

    def wait(self):
        """The exit code and what each has printed: [(code, out, err), …]"""
        try:
            return [(agent.wait(200), agent.out, agent.err) for agent in self.agents]
        finally:
            for agent in self.agents:
                agent.send_signal(signal.SIGKILL)


def result(folder, study="default"):
    (file,) = folder.glob(f"outputs/{study}/*/seed0/result.json")
    return file.parent, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "line"),
    [
        ("raise ValueError('no such word')", "failed", "in process 1: ValueError: no such word"),
        ("os.kill(os.getpid(), 9)", "interrupted", "interrupted; the same command"),
    ],
    ids=["fails", "is killed"],
)
def test_what_ends_one_node_ends_both_and_is_recorded(tmp_path, unused_port, what, status, line):
    (tmp_path / "fails_on_one.py").write_text(FAILS_ON_ONE.format(what=what))
    words = [
        "model=custom",
        "model._target_=fails_on_one.Net",
        "trainer.max_epochs=40",
        "trainer.num_nodes=2",
    ]
    (first, _, err), (second, _, _) = Nodes(tmp_path, unused_port, *words).wait()
    assert 0 not in (first, second)
    _, record = result(tmp_path)
    assert record["status"] == status
    assert line in record["error"]
    assert err.count(record["error"]) == 1


TASKS = {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
STEP = TASKS | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}
ELASTIC = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
}


@pytest.mark.parametrize(
    ("environment", "started"),
    [
        ({}, Launch()),
        ({"LOCAL_RANK": "1"}, Launch()),  # Lightning's, of a program that mpx has not started
        (ELASTIC, Launch(TORCHRUN, 1, 0, 2, 1)),
        (STEP, Launch(SRUN, 3, 1, 4, 2)),
        (TASKS, Launch()),  # a batch script that asked for four tasks, of which it is none
    ],
)
def test_who_started_this_process(environment, started):
    assert launch(environment) == started


@pytest.mark.parametrize(
    ("environment", "devices", "num_nodes", "line"),
    [
        ({}, 2, 1, None),
        (ELASTIC, 1, 2, None),
        ({}, 1, 2, "torchrun --nnodes=2 --nproc-per-node=1"),
        (ELASTIC, 1, 1, "Use trainer.devices=1 trainer.num_nodes=2."),
        (STEP, 1, 4, "srun started 2 × 2 processes .* Use trainer.devices=2 trainer.num_nodes=2."),
    ],
)
def test_settings_must_fit_the_processes(monkeypatch, environment, devices, num_nodes, line):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if line is None:
        return check_layout(devices, num_nodes)
    with pytest.raises(UserError, match=line):
        check_layout(devices, num_nodes)


@pytest.mark.parametrize(("environment", "by"), [(ELASTIC, "torchrun started 2"), (STEP, "srun started 4")])
def test_several_processes_do_not_start_a_sweep(train, monkeypatch, environment, by):
    """Each would start all jobs, and the jobs of one would meet those of another."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = train("-m", "seed=0,1")
    assert_refused(
        ran,
        f"error: -m: one process starts all jobs of a sweep, and {by}. Use python -m mpx.train -m …; "
        "trainer.devices=N runs",
    )
