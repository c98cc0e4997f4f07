"""What is recorded of a profile: from made-up figures of a GPU, whose step may be replayed or compiled."""

import pytest

from mpx.measure.findings import Seen, findings, in_words
from mpx.measure.limits import Limits
from mpx.measure.operations import Operation
from mpx.measure.trace import Busy

KERNELS = {"nvjet_hsh_128x128": (10, 25.0), "triton_poi_fused_relu_0": (20, 15.0)}
OPERATIONS = [
    Operation("mm", "fp16", True, True, 2, 5.0, 4 * 10**9, 1000, 4.0, "arithmetic", {"nvjet_hsh_128x128"}),
    Operation("relu", "fp16", False, None, 4, 3.0, 0, 1000, None, None),
]
LIMITS = Limits({"fp16": 1e12}, 1e12, "made up")


def seen(**changed):
    traced = Busy(busy_ms=40.0, longest_gap_ms=0.5, launches=30, kernels=KERNELS)
    return Seen(**{"on_gpu": True, "step_ms": 10.0, "waited_ms": 0.2, "traced": traced, "operations": OPERATIONS, "steps": 5,
                   "replayed": 0, "compiled": False, "loader": "resident", "mode": "amp"} | changed)  # fmt: skip


def test_per_step():
    found = findings(seen(), LIMITS)
    assert (found["busy_ms"], found["launches"], found["longest_gap_ms"]) == (8.0, 6, 0.5)
    assert found["idle_fraction"] == pytest.approx(0.2)
    assert (found["bound"], found["rows"], found["steps"]) == ("arithmetic", "operations", "5 plain steps")
    assert (found["limit_gb_per_s"], found["limit_tflops_per_s"]) == (1000.0, {"fp16": 1.0})
    product, relu = found["operations"]
    assert (product["share"], product["roofline"], product["gflop"]) == (0.625, 0.8, 4.0)
    assert "roofline_reason" not in product
    assert relu["roofline_reason"] == "no limit known for fp16"


def test_a_compiled_step_is_listed_by_its_own_kernels():
    found = findings(seen(compiled=True, replayed=5), LIMITS)
    product, fused = found["operations"]
    assert found["rows"] == "kernels"
    assert (product["operation"], product["ms"], product["calls"], product["format"]) == ("nvjet_hsh_128x128", 5.0, 2, "fp16")
    assert fused["roofline_reason"] == "a compiled kernel tells no shapes"
    assert (found["arithmetic_ms"], found["memory_ms"], found["cores_ms"]) == (5.0, 3.0, 5.0)


@pytest.mark.parametrize(
    ("replayed", "compiled", "words"),
    [
        (0, False, "5 plain steps"),
        (0, True, "5 compiled steps"),
        (5, False, "5 steps replayed from a CUDA graph"),
        (5, True, "5 steps replayed from a CUDA graph of compiled code"),
        (3, False, "3 steps replayed from a CUDA graph and 2 plain ones"),
    ],
)
def test_which_steps(replayed, compiled, words):
    assert in_words(seen(replayed=replayed, compiled=compiled)) == words


@pytest.mark.parametrize(("changed", "busy_ms"), [({}, 8.0), ({"compiled": True}, 9.8), ({"compiled": True, "waited_ms": 11.0}, 0.0)])
def test_on_a_cpu_a_compiled_steps_operations_are_unknown(changed, busy_ms):
    found = findings(seen(**{"on_gpu": False, "traced": None} | changed), LIMITS)
    assert found["busy_ms"] == pytest.approx(busy_ms)
    assert found["rows"] == "operations"


def test_the_size_that_most_of_the_time_in_large_misaligned_products_has():
    layers = [
        Operation("mm", "fp16", True, True, calls, ms, 10**9, 10**8, misaligned=size)
        for calls, ms, size in ((1, 2.0, 9), (1, 3.0, 7), (1, 2.0, 9), (1, 1.0, None), (2, 2.0, 5))
    ]
    found = findings(seen(layers=layers), LIMITS)
    assert (found["misaligned_share"], found["misaligned_size"]) == (0.7, 9)


def test_each_layer_lies_where_its_arithmetic_and_its_time_put_it():
    layers = [Operation("mm", "fp16", True, True, 2, 4.0, 8 * 10**9, 10**8), Operation("mm", None, True, None, 1, 4.0, 10**9, 10**8)]
    (layer,) = findings(seen(layers=layers), LIMITS)["layers"]
    assert layer == {"operation": "mm", "format": "fp16", "calls": 2, "flops_per_byte": 80.0, "tflops_per_s": 2.0}
