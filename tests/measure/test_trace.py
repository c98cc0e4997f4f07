"""Busy time, gaps and kernels from a trace, made up and written by the profiler itself."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mpx.measure.operations import of_kernels
from mpx.measure.trace import busy, read_trace


def event(name, start_us, us, category="kernel"):
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": us}


def test_kernels_that_overlap_count_once():
    events = [event("gemm", 0, 100), event("add", 50, 100), event("copy", 400, 50, "gpu_memcpy"), event("gemm", 120, 20)]
    events += [event("aten::mm", 0, 10_000, "cpu_op"), event("step", 0, 10_000, "gpu_user_annotation"), {"ph": "M", "name": "process"}]
    found = busy(events)
    assert found.busy_ms == pytest.approx(0.2)
    assert found.longest_gap_ms == pytest.approx(0.25)
    assert found.launches == 4
    assert found.kernels == {"gemm": (2, pytest.approx(0.12)), "add": (1, pytest.approx(0.1)), "copy": (1, pytest.approx(0.05))}
    assert next(iter(found.kernels)) == "gemm"


def test_without_a_device_there_are_no_gaps(tmp_path):
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:  # torch 2.11 warns without
        torch.ones(2) + 1
    path = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    events = read_trace(path)
    assert any(event.get("name") == "aten::add" for event in events)
    assert busy(events) is None


def test_rows_of_kernels_are_per_step():
    kernels = {"nvjet_hsh_128x128": (10, 5.0), "triton_poi_fused_relu_0": (20, 2.0)}
    product, fused = of_kernels(kernels, steps=5)
    assert (product.calls, product.ms, product.fmt, product.tensor_cores, product.multiplies) == (2, 1.0, "fp16", True, True)
    assert (fused.calls, fused.ms, fused.fmt, fused.tensor_cores, fused.multiplies) == (4, 0.4, None, None, False)
    assert fused.roofline is None
