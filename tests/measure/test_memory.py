"""Peak memory against tensors of known size."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpx.measure.memory import peak_memory, reset_host_peak, reset_peak

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RESIDENT_AND_PEAK = """
import resource, torch
from mpx.measure.memory import peak_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**30

tensor = torch.ones(2**28)  # 2**30 bytes
with_tensor = resident()
del tensor
print(with_tensor, resident(), peak_memory(torch.device("cpu"))["peak_rss_gib"])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_host_peak_is_what_was_resident_at_most():
    # a process of its own: this one may have had a higher peak already
    output = subprocess.run(
        [sys.executable, "-c", RESIDENT_AND_PEAK], capture_output=True, text=True, check=True
    ).stdout
    with_tensor, without, peak = map(float, output.split())
    assert with_tensor - without == pytest.approx(1, abs=0.05)
    assert peak == pytest.approx(with_tensor, abs=0.05)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_hosts_peak_is_that_of_the_run_and_not_of_one_before():
    cpu = torch.device("cpu")
    tensor = torch.ones(2**27)  # half a GiB
    before = peak_memory(cpu)["peak_rss_gib"]
    del tensor
    reset_host_peak()
    assert peak_memory(cpu)["peak_rss_gib"] < before - 0.4
    tensor = torch.ones(2**26)
    del tensor
    low = peak_memory(cpu)["peak_rss_gib"]
    reset_peak(cpu)  # within the run
    assert peak_memory(cpu)["peak_rss_gib"] == low


def test_cpu_has_no_device_peaks_and_says_why():
    reset_peak(torch.device("cpu"))
    memory = peak_memory(torch.device("cpu"))
    for name in ("peak_allocated_gib", "peak_reserved_gib"):
        assert memory[name] is None
        assert "cpu" in memory[f"{name}_reason"]


@needs_gpu
def test_device_peak_moves_by_a_tensors_size_and_can_be_reset():
    device = torch.device("cuda")
    reset_peak(device)
    before = peak_memory(device)["peak_allocated_gib"]
    tensor = torch.ones(2**26, device=device)
    del tensor
    memory = peak_memory(device)
    assert memory["peak_allocated_gib"] - before == pytest.approx(0.25, abs=0.001)
    assert memory["peak_reserved_gib"] >= memory["peak_allocated_gib"]
    reset_peak(device)
    assert peak_memory(device)["peak_allocated_gib"] == pytest.approx(before, abs=0.001)
