"""Sweeps by submitit, on a cluster of this one machine: a job that must go saves, is requeued, and finishes
in its folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from documents import ROOT, text
from processes import WAITING_NET, wait_for
from slurm import Cluster, missing

from mpx.sweep import cluster

pytest.importorskip("submitit", reason="comes with the extra mpx[submitit]")

FEW = [
    "model=mlp",
    "data.batch_size=16",
    "trainer.limit_train_batches=20",
    "trainer.warmup_steps=1",
    "sparsity=2of4",
]
LONG = ["-m", *FEW, "trainer.max_epochs=40"]
LOCAL, SLURM = "hydra/launcher=submitit_local", "hydra/launcher=submitit_slurm"
ON_SLURM = [f"hydra.launcher.{word}" for word in ("gpus_per_node=null", "cpus_per_task=1", "mem_gb=null")]
WORKER = "submitit.core._submit"


class Sweep:
    """`python -m mpx.train *words`, started in `folder`."""

    def __init__(self, folder, *words, env=None):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mpx.train", *words],
            cwd=folder, env=os.environ | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def saved(self, seed):
        """Whether the run of `seed` has written a checkpoint; fails if the sweep has ended."""
        assert self.process.poll() is None, self.process.communicate()
        return any(self.folder.glob(f"outputs/default/*/seed{seed}/checkpoints/last.ckpt"))

    def end(self, timeout=240):
        """(exit code, stdout, stderr)"""
        try:
            out, err = self.process.communicate(timeout=timeout)
        finally:
            self.process.kill()
        return self.process.returncode, out, err

    @property
    def records(self):
        """By the name of the run's folder."""
        return {
            file.parent.name: json.loads(file.read_text())
            for file in self.folder.glob("outputs/default/*/seed*/result.json")
        }


def was_continued(record):
    return record["status"] == "completed" and len(record["environment"]["resumed_from_steps"]) == 1


def workers():
    """The processes in which submitit runs a job of this test's sweep."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if WORKER in line and "submitit.local._local" not in line]


@pytest.mark.slow
def test_jobs_on_this_machine_run_at_once_and_one_is_told_to_go(tmp_path):
    """Each sees the user's GPUs, though submitit hides them."""
    (tmp_path / "waiting_net.py").write_text(WAITING_NET)
    words = [
        "model=custom",
        "model._target_=waiting_net.Net",
        *FEW[1:-1],
        "trainer.max_epochs=60",
        "seed=0,1",
    ]
    sweep = Sweep(
        tmp_path, "-m", *words, LOCAL, "hydra.sweeper.max_batch_size=2", env={"CUDA_VISIBLE_DEVICES": "5,6"}
    )
    wait_for(lambda: sweep.saved(0) and sweep.saved(1))
    assert [file.read_text() for file in tmp_path.glob("saw-*")] == ["5,6"] * 2
    ours = [pid for pid in workers() if os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)]
    assert len(ours) == 2
    os.kill(ours[0], signal.SIGUSR2)  # as submitit does before the time limit
    code, out, err = sweep.end()
    assert (code, err) == (0, "")
    assert "2 runs, 2 at once" in out
    assert "2/2 " in out
    records = sweep.records.values()
    assert [record["status"] for record in records] == ["completed"] * 2
    assert sorted(len(record["environment"]["resumed_from_steps"]) for record in records) == [0, 1]
    assert not any(tmp_path.glob("outputs/_sweep/*")), "nothing failed"


@pytest.fixture(scope="module")
def slurm():
    if (why := missing()) is not None:
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="mpx"))  # short, as sockets need
    started = Cluster(folder)
    yield started
    started.end()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_jobs_of_slurm_are_continued_and_cancelled(tmp_path, slurm):
    sweep = Sweep(tmp_path, *LONG, "seed=0,1", SLURM, *ON_SLURM, env=slurm.environment)
    # Slurm sends the first before the time limit; the second is a user who wants the job no more.
    left = {0: ["--signal=USR2"], 1: []}
    while left:
        seed, *_ = wait_for(lambda: [seed for seed in left if sweep.saved(seed)])
        (array,) = {
            line.split("_")[0] for line in slurm.ask("squeue", "-h", "-r", "-o", "%F_%K").splitlines()
        }
        slurm.ask("scancel", *left.pop(seed), f"{array}_{seed}")
    code, _, err = sweep.end()
    assert code == 1
    assert "seed 1  interrupted; the same command continues it\n" in err
    assert "Traceback" not in err
    records = sweep.records
    assert records.keys() == {"seed0", "seed1"}
    assert was_continued(records["seed0"])
    assert records["seed1"]["status"] == "interrupted"


@pytest.mark.slow
def test_a_job_of_several_tasks(tmp_path, slurm):
    """Slurm starts both processes of the job, as it does on several machines."""
    two = ["trainer.devices=2", "trainer.accelerator=cpu", "hydra.launcher.tasks_per_node=2"]
    code, out, err = Sweep(
        tmp_path, "-m", *FEW, "trainer.max_epochs=1", "seed=0", *two, SLURM, *ON_SLURM, env=slurm.environment
    ).end()
    assert code == 0, err
    assert "1/1 " in out


@pytest.mark.slow
def test_the_script_on_the_page_continues_a_run(tmp_path, slurm):
    """On one machine with two processes, which must save at the same step."""
    (script,) = re.findall(
        r"^    (#!/bin/bash\n(?:    .*\n)+)", text(ROOT / "docs" / "clusters.md"), re.MULTILINE
    )
    for there, here in (
        ("    ", ""),
        (" --gpus-per-node=4", ""),
        ("nodes=2", "nodes=1"),
        ("=4 ", "=2 "),
        ("=4\n", "=2\n"),
    ):
        script = script.replace(there, here)
    words = [*FEW, "trainer.max_epochs=20", "trainer.accelerator=cpu", "trainer.log_every_n_steps=5"]
    assert "trainer.devices=2 if_exists=resume" in script
    (tmp_path / "job.sh").write_text(
        script.replace("if_exists=resume", " ".join(["if_exists=resume", *words]))
    )
    job = slurm.ask(
        "sbatch", "--parsable", f"--chdir={tmp_path}", "--output=job.out", str(tmp_path / "job.sh")
    )
    wait_for(lambda: any(tmp_path.glob("outputs/default/*/seed0/checkpoints/last.ckpt")))
    slurm.ask("scancel", "--signal=USR1", job)
    (file,) = wait_for(lambda: list(tmp_path.glob("outputs/default/*/seed*/result.json")))
    wait_for(lambda: json.loads(file.read_text())["status"] != "interrupted")
    record = json.loads(file.read_text())
    assert was_continued(record), (tmp_path / "job.out").read_text()
    assert record["sparsity"]["verified"] is True


def test_no_slurm_here(train, monkeypatch):
    monkeypatch.setattr(cluster.shutil, "which", lambda name: None)
    ran = train("-m", "seed=0,1", SLURM)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith(
        "error: hydra/launcher=submitit_slurm needs sbatch, which is not on this machine."
    )
    assert not ran.outputs.exists()
