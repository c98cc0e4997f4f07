"""Which ways there are to make 2:4 masks depends on what the machine has."""

import torch

from mpx.bench.kernels import triton


def test_a_gpu_without_triton_has_the_other_ways(monkeypatch):
    monkeypatch.setattr(triton, "find_spec", lambda name: None)
    found = triton.ways(torch.device("cuda"))
    assert callable(found["PyTorch"])
    assert found["Triton"] == "Triton is not installed"
    assert triton.ways(torch.device("cpu"))["Triton"] == "Triton's kernels need a CUDA device"
