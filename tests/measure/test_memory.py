"""Peak memory against tensors of known size."""

from pathlib import Path

import pytest
import torch

from mpx.measure.memory import peak_memory, reset_host_peak, reset_peak

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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
