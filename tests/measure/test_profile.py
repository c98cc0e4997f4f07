"""profile=true on runs whose bottleneck is known, and what it leaves alone."""

import gzip
import json

import pytest
from few_steps import FEW_STEPS

from mpx.measure.profile import Operation, Profile, Traced, bottleneck, of_cpu, of_gpu

GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN"  # BF16, on Tensor Cores
COPY = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def kernel(name, ts, dur, cat="kernel"):
    return {"name": name, "ts": ts, "dur": dur, "cat": cat}


def test_kernels_that_overlap_count_once_as_busy():
    """Of two steps: 300 + 200 µs of computing in 400 µs."""
    events = [
        kernel(GEMM, 0, 300),
        kernel(COPY, 200, 200),
        kernel("aten::mm", 0, 999, "cpu_op"),
        {"ph": "M", "name": "x"},
    ]
    traced = of_gpu(events, steps=2)
    assert (traced.busy_ms, traced.launches) == (pytest.approx(0.2), 1)
    first, second = traced.operations
    assert (first.operation, first.calls, first.ms, first.share) == (
        GEMM,
        0.5,
        pytest.approx(0.15),
        pytest.approx(0.6),
    )
    assert (first.format, first.tensor_cores, first.product) == ("bf16", True, True)
    assert (second.format, second.tensor_cores, second.product) == (None, None, False)


def test_operations_of_a_cpu():
    times = {
        "aten::addmm": (4, 3.0),
        "aten::relu": (2, 1.0),
        "Optimizer.step#SGD.step": (2, 9.0),
        "autograd::engine: X": (2, 9.0),
    }
    traced = of_cpu(times, steps=2)
    assert (traced.busy_ms, traced.launches) == (2.0, None)
    assert [(row.operation, row.calls, row.share, row.product) for row in traced.operations] == [
        ("aten::addmm", 2.0, 0.75, True),
        ("aten::relu", 1.0, 0.25, False),
    ]


def a_step(*, busy_ms=9.0, launches=500.0, products=0.8, tensor_cores=True):
    gemm = Operation(GEMM, 1, 1, products, None, tensor_cores, product=True)
    copy = Operation(COPY, 1, 1, 1 - products, None, None, product=False)
    return Traced(1, (gemm, copy), busy_ms, launches)


CPU = {"launches": None, "tensor_cores": None}
BUSY = {"busy_ms": 4.0}


@pytest.mark.parametrize(
    ("changed", "waited", "bound", "said"),
    [
        ({}, 0.0, "arithmetic", "100% of it on Tensor Cores, in precision=amp"),
        ({"tensor_cores": False}, 0.0, "arithmetic", "only 0% of that is on Tensor Cores. Use precision=amp"),
        ({"products": 0.2}, 0.0, "memory", "80% of the computing moves data and multiplies no matrices"),
        (
            BUSY,
            0.0,
            "launch overhead",
            "has 500 kernels and copies. Use trainer.cuda_graphs=true or a larger",
        ),
        (BUSY, 0.5, "input", "the batch takes 50% of a step. Use data.loader=resident"),
        ({}, 0.5, "arithmetic", "Tensor Cores"),  # the host waits while the device computes
        (CPU, 0.0, "arithmetic", "a narrower format that this CPU multiplies faster"),
        (CPU | {"busy_ms": 2.0}, 0.0, "launch overhead", "many short operations. Use a larger batch."),
    ],
)
def test_known_bottlenecks(changed, waited, bound, said):
    limit, sentence = bottleneck(a_step(**changed), 10.0, waited, "amp", emulated=False, against={})
    assert limit == bound
    assert said in sentence


def test_what_a_run_uses_is_not_advised(tmp_path):
    profile = Profile(None, tmp_path, sampled=100, emulated=False, against={})
    profile.traced = a_step(busy_ms=4.0)
    speed = {
        "step_ms_p50": 10.0,
        "data_wait_fraction": 0.0,
        "chosen": {"cuda_graphs": True, "compile": "off"},
    }
    said = profile.record(speed, {"mode": "amp"})["sentence"]
    assert said.endswith("copies. Use a larger batch. A narrower format does not help.")


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_a_run_is_profiled_outside_its_throughput(train, loader):
    words = ["model=mlp", "trainer.max_epochs=2", f"data.loader={loader}", "data.workers=1"]
    ran = train("profile=true", *words)
    assert ran.code == 0, ran.err
    found = ran.record["profile"]
    assert found["steps"] == 5
    assert found["bound"] in ("input", "launch overhead", "memory", "arithmetic")
    assert ran.out.rstrip().splitlines()[-1] == found["sentence"]
    assert ran.record["speed"]["measured_steps"] <= 2 * 20 - 10 - 6
    assert any(row["operation"] == "aten::addmm" for row in found["operations"])
    trace = json.loads(gzip.decompress((ran.folder / "trace.json.gz").read_bytes()))
    assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])


def test_a_profile_does_not_change_the_training(train):
    few = ["model=mlp", "trainer.max_epochs=2", "sparsity=2of4"]
    plain, profiled = (train(*few, f"profile={on}", "if_exists=overwrite").record for on in ("false", "true"))
    assert plain["metrics"] == profiled["metrics"]
    assert profiled["profile"]["operations"]


def test_a_short_run_says_what_a_profile_needs(train):
    ran = train("profile=true", "model=mlp", *FEW_STEPS)
    assert ran.code == 0, ran.err
    assert ran.record["profile"]["bound"] is None
    assert "profile: what limits the run is unknown, since no epoch had " in ran.out
