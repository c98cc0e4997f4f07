"""Jobs of a sweep on CUDA devices: those that run at the same time have one each, to themselves.

The last is only looked at where no test beside uses a device: `pytest tests/gpu/test_gpu_sweep.py -n 0`.
"""

import json
import os

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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_one_gpu_each(command, tmp_path):
    # pytest itself may have used one before
    idle = not any(_compute_processes(torch.device("cuda", index)) for index in range(2))
    beside = "PYTEST_XDIST_WORKER" in os.environ  # other tests run meanwhile
    (tmp_path / "waiting_net.py").write_text(NET)
    ran = command(
        "-m", "model=custom", "model._target_=waiting_net.Net", "+model.kwargs.me=a,b",
        "trainer.max_epochs=1",
        "hydra.launcher.n_jobs=2",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    seen = [file.read_text().split() for file in tmp_path.glob("saw-*")]
    assert [count for count, _ in seen] == ["1", "1"]
    assert len({uuid for _, uuid in seen}) == 2
    records = [json.loads((folder / "result.json").read_text()) for folder in ran.folders]
    reasons = [record["speed"]["exclusive_reason"] for record in records]
    if idle and not beside:
        assert [record["speed"]["exclusive"] for record in records] == [True, True], reasons
