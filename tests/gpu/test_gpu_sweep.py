"""Jobs of a sweep on CUDA devices: forks of one process can use them, and jobs that run at the same time have one each, to themselves.

The last is only looked at where no test beside uses a device: `pytest tests/gpu/test_gpu_sweep.py -n 0`.
"""

import json
import os
from importlib.util import find_spec

import pytest
import torch

from mpx.measure.exclusive import _compute_processes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NET = """
import time
from pathlib import Path
import torch
from torch import nn

def Net(input_shape, num_classes, me):
    Path(f"saw-{me}").write_text(f"{torch.cuda.device_count()} {torch.cuda.get_device_properties(0).uuid}")
    end = time.monotonic() + 90
    while len(list(Path().glob("saw-*"))) < 2 and time.monotonic() < end:  # until the other job runs too
        time.sleep(0.1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


PARENT = """
import os
from pathlib import Path
from torch import nn

def Net(input_shape, num_classes, me):
    Path(f"parent-{me}").write_text(Path(f"/proc/{os.getppid()}/cmdline").read_text())
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


def test_jobs_are_forks_and_compute_on_the_gpu(command, tmp_path):
    """Nothing that the starter imports may touch CUDA: it would give up, and every job would import everything again."""
    (tmp_path / "parent_net.py").write_text(PARENT)
    ran = command("-m", "model=custom", "model._target_=parent_net.Net", "+model.kwargs.me=a,b", "trainer.max_epochs=1")
    assert ran.code == 0, ran.err
    records = [json.loads((folder / "result.json").read_text()) for folder in ran.folders]
    assert all(record["environment"]["device"] and record["memory"]["peak_allocated_gib"] > 0 for record in records)
    assert all("mpx.sweep.starter" in (tmp_path / f"parent-{me}").read_text() for me in "ab")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], id="joblib"),
        pytest.param(
            ["hydra/launcher=submitit_local", "hydra.sweeper.max_batch_size=2"],
            id="submitit_local",
            marks=pytest.mark.skipif(find_spec("submitit") is None, reason="needs submitit"),
        ),
    ],
)
def test_one_gpu_each(command, tmp_path, launcher):
    idle = not any(_compute_processes(torch.device("cuda", index)) for index in range(2))  # pytest itself may have used one before
    beside = "PYTEST_XDIST_WORKER" in os.environ  # other tests run meanwhile
    (tmp_path / "waiting_net.py").write_text(NET)
    ran = command(
        "-m", "model=custom", "model._target_=waiting_net.Net", "+model.kwargs.me=a,b", "trainer.max_epochs=1",
        *launcher,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    seen = [file.read_text().split() for file in tmp_path.glob("saw-*")]
    assert [count for count, _ in seen] == ["1", "1"]
    assert len({uuid for _, uuid in seen}) == 2
    records = [json.loads((folder / "result.json").read_text()) for folder in ran.folders]
    reasons = [record["speed"]["exclusive_reason"] for record in records]
    if idle and not beside:
        assert [record["speed"]["exclusive"] for record in records] == [True, True], reasons


def test_two_jobs_share_a_gpu_and_the_speed_is_measured_alone(command, tmp_path):
    """Each of the two waits until the other runs too. Their accuracy is that of a run by itself."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    idle = not any(_compute_processes(torch.device("cuda", index)) for index in range(torch.cuda.device_count()))
    (tmp_path / "waiting_net.py").write_text(NET)
    settings = ["model=custom", "model._target_=waiting_net.Net", "trainer.max_epochs=3", "speed=plain"]
    shared = ["-m", *settings, "+model.kwargs.me=a,b", "gpu_share=2"]
    ran = command(*shared, env={"CUDA_VISIBLE_DEVICES": visible})
    assert "sweep of 2 jobs, 2 at once" in ran.out
    seen = [file.read_text() for file in tmp_path.glob("saw-*")]
    assert len(seen) == 2
    assert len(set(seen)) == 1, "one GPU"
    records = [json.loads((folder / "result.json").read_text()) for folder in ran.folders]
    assert [record["status"] for record in records] == ["completed"] * 2, ran.err
    if not idle or "PYTEST_XDIST_WORKER" in os.environ:
        return
    assert ran.code == 0, ran.err
    for record in records:
        speed = record["speed"]
        assert (speed["beside"]["exclusive"], speed["exclusive"]) == (False, True), speed["exclusive_reason"]
        assert speed["measured"] == "alone, after the sweep, on seed 0"
        assert speed["measured_steps"] >= 50
        assert speed["train_samples_per_s"] > speed["beside"]["train_samples_per_s"] / 2
    by_itself = command(*settings, "+model.kwargs.me=a", "study=by_itself", env={"CUDA_VISIBLE_DEVICES": visible})
    assert by_itself.code == 0, by_itself.err
    (alone,) = (json.loads(file.read_text()) for file in tmp_path.glob("outputs/by_itself/*/seed0/result.json"))
    assert alone["metrics"]["test/accuracy"] == pytest.approx(records[0]["metrics"]["test/accuracy"], abs=0.02)
