"""Backends on a CPU; test_deploy.py has what they compute."""

import time

import pytest
import torch
from torch import nn
from torch._inductor.exc import InductorError

from mpx.deploy import backends
from mpx.deploy.backends import latency, reason_of
from mpx.deploy.build import Trained, in_format
from mpx.errors import UserError
from mpx.precision.modes import MODES, cpu_has_bf16

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = pytest.mark.skipif(not cpu_has_bf16(), reason="no BF16 instructions")


@BF16
def test_running_statistics_stay_fp32_with_their_values():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)).eval()
    model[1].running_var.copy_(torch.tensor([1e6, 1 + 2**-20, 1.0, 3.0]))
    served = in_format(Trained(model, None), MODES["fp16_true"], CPU)
    assert served[0].weight.dtype == torch.float16
    assert torch.equal(served[1].running_var, model[1].running_var)
    assert served[1].weight.dtype == torch.float32
    out = in_format(Trained(model, None), MODES["bf16_true"], CPU)(torch.randn(2, 1, 3, 3).bfloat16())
    assert out.dtype == torch.bfloat16


def test_latency_is_that_of_a_known_call(monkeypatch):
    """A call of 20 ms, and one in ten of 60 ms."""
    monkeypatch.setattr(backends, "BUDGET_S", 0.5)
    calls = []

    def call(x):
        calls.append(x)
        time.sleep(0.06 if len(calls) % 10 == 0 else 0.02)

    found = latency(call, torch.zeros(1))
    assert 20 <= found["latency_ms_p50"] < 35
    assert found["latency_ms_p99"] >= 50
    assert found["latency_calls"] == len(calls) >= 10


def test_memory_that_a_cpu_does_not_have_is_no_backends_fault():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**48)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        reason_of(error.value)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        reason_of(
            InductorError(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), None)
        )
    assert reason_of(RuntimeError("mat1 and mat2 must have the same dtype")) == (
        "mat1 and mat2 must have the same dtype"
    )


def test_backends_of_a_cpu(monkeypatch):
    monkeypatch.setattr(backends, "builds_kernels", lambda device: True)
    assert backends.backends("auto", "fp32", CPU) == ["eager", "compile", "onnx"]
    assert backends.backends("auto", "bf16", CPU) == ["eager", "compile"]
    assert backends.backends("auto", "int8", CPU) == ["onnx"]


@pytest.mark.parametrize(
    ("wish", "fmt", "device", "message"),
    [
        (
            "compile",
            "int8",
            CPU,
            r"backend=compile: on a CPU, INT8 products are ONNX Runtime's\. Use "
            r"backend=auto or onnx\.",
        ),
        ("onnx", "fp32", CUDA, r"backend=onnx: mpx calls ONNX Runtime on CPUs only; use accelerator=cpu\."),
        ("compile", "fp32", CPU, "backend=compile: torch.compile finds no compiler"),
    ],
)
def test_a_backend_that_is_not_there(monkeypatch, wish, fmt, device, message):
    monkeypatch.setattr(backends, "builds_kernels", lambda kind: kind == "cuda")
    with pytest.raises(UserError, match=message):
        backends.backends(wish, fmt, device)
