"""NVIDIA MPS lets kernels of several processes run at the same time, and hides the processes from NVML's usual list."""

import os
import shutil
import subprocess
import sys
import time

import pytest
import torch

CONTROL = "nvidia-cuda-mps-control"
ASK = """
import torch
from mpx.measure.exclusive import _compute_processes, _mps_clients, exclusive
device = torch.device("cuda", 0)
torch.zeros(1, device=device)
print(exclusive(device), _compute_processes(device), _mps_clients(device))
"""


@pytest.mark.skipif(not torch.cuda.is_available() or shutil.which(CONTROL) is None, reason="needs a GPU and NVIDIA MPS")
def test_a_run_served_by_mps_is_never_alone(tmp_path):
    places = {f"CUDA_MPS_{name}_DIRECTORY": str(tmp_path / name) for name in ("PIPE", "LOG")}
    for place in places.values():
        os.mkdir(place)
    device = f"GPU-{torch.cuda.get_device_properties(0).uuid}"  # not its number, of which MPS has its own
    environment = os.environ | places | {"CUDA_VISIBLE_DEVICES": device}
    with subprocess.Popen([CONTROL, "-f"], env=environment) as control:
        try:
            end = time.monotonic() + 20
            while not os.path.exists(tmp_path / "PIPE" / "control") and time.monotonic() < end:
                time.sleep(0.1)
            answer = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60)
        finally:
            subprocess.run([CONTROL], input="quit -t 1\n", env=environment, text=True, timeout=20)
            control.kill()
    assert answer.stdout.startswith("(False, 'NVIDIA MPS serves the device"), answer
