"""A sweep that is killed with -9 leaves nothing running, and the same sweep finishes what it began."""

import json
import os
import subprocess
import sys

import pytest
from processes import alive, wait_for


def descendants(pid):
    """Processes that `pid` started, and those that they started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes in /proc")
def test_killed_and_started_again(forked, tmp_path):
    arguments = ["-m", "model=mlp", "seed=0,1", "trainer.max_epochs=40"]
    two_at_once = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "mpx.train", *arguments, *two_at_once], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: len(list(tmp_path.glob("outputs/default/*/seed*/checkpoints/last.ckpt"))) >= 2)
    family = descendants(sweep.pid)
    assert len(family) >= 4, "two workers and two jobs"
    sweep.kill()  # its workers and their jobs must notice by themselves
    sweep.wait()
    wait_for(lambda: not any(map(alive, family)), seconds=30)

    ran = forked(*arguments)
    assert ran.code == 0, ran.err
    records = {path.name: json.loads((path / "result.json").read_text()) for path in ran.folders}
    assert {name: record["status"] for name, record in records.items()} == dict.fromkeys(("seed0", "seed1"), "completed")
    resumed = [name for name, record in records.items() if record["environment"]["resumed_from_steps"]]
    assert resumed  # one of the two may have been ready just before the kill
