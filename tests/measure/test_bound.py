"""Which limit holds a run back, decided from made-up figures whose answer is known."""

import pytest

from mpx.measure.bound import Evidence, decide, times
from mpx.measure.operations import Operation
from mpx.precision.modes import MODES

GPU = {
    "on_gpu": True, "step_ms": 10.0, "busy_ms": 9.5, "waited_ms": 0.1, "launches": 500, "arithmetic_ms": 6.0, "memory_ms": 3.5,
    "products_ms": 6.0, "cores_ms": 6.0, "arithmetic_roofline": 0.55, "memory_roofline": 0.7, "mode": "amp", "loader": "resident",
    "native": frozenset(MODES),
}  # fmt: skip
AMPERE, TURING = frozenset(MODES) - {"fp8"}, frozenset({"fp32", "amp", "fp16_true", "o0", "o1", "o2", "o3"})
CPU = GPU | {"on_gpu": False, "launches": None, "cores_ms": None, "arithmetic_roofline": None, "memory_roofline": None}


@pytest.mark.parametrize(
    ("changed", "bound", "words"),
    [
        ({"busy_ms": 3.0, "waited_ms": 6.5, "loader": "workers"}, "input", ["65% of a step's 10 ms", "data.loader=resident"]),
        ({"busy_ms": 2.0}, "launch overhead", ["idle for 80%", "500 kernels of 4 µs", "trainer.cuda_graphs=true", "other 20%"]),
        ({"busy_ms": 2.0, "replayed": True}, "launch overhead", ["try a larger data.batch_size"]),
        ({"memory_ms": 6.5, "arithmetic_ms": 3.0}, "memory", ["68%", "70% of the memory's limit", "compile=default", "bf16_true"]),
        ({"memory_ms": 6.5, "arithmetic_ms": 3.0, "mode": "fp32"}, "memory", ["fuses such operations, or precision=amp_bf16"]),
        ({"memory_ms": 6.5, "arithmetic_ms": 3.0, "memory_roofline": 0.1}, "memory", ["yet at 10% of", "a larger data.batch_size"]),
        ({"emulated": True, "busy_ms": 2.0}, "emulation", ["no precision=amp of its own", "say nothing about amp"]),
        ({}, "arithmetic", ["63%", "55% of the limit", "100% of it on Tensor Cores", "precision=fp8"]),
        ({"cores_ms": 3.0}, "arithmetic", ["50% of it runs without Tensor Cores", "multiples of 8"]),
        ({"cores_ms": 0.0, "mode": "fp32"}, "arithmetic", ["0% of it on Tensor Cores", "precision=amp"]),
        ({"arithmetic_roofline": None, "cores_ms": None}, "arithmetic", ["matrix products, convolutions"]),
        (
            {"misaligned_share": 0.3, "misaligned_size": 33_278},
            "arithmetic",
            ["30% of", "of 33,278 numbers", "pad such a size, as to 33,280."],
        ),
        (
            {"misaligned_share": 0.3, "misaligned_size": 9, "memory_ms": 6.5, "compiled": True},
            "memory",
            ["in products of an uncompiled step goes", "of 9 numbers", "as to 16."],
        ),
    ],
)
def test_on_a_gpu(changed, bound, words):
    verdict = decide(Evidence(**GPU | changed))
    assert verdict.bound == bound
    assert verdict.sentence.startswith(f"Held back by {bound}: ")
    assert [word for word in words if word not in verdict.sentence] == []
    assert verdict.sentence.endswith(".")
    assert "\n" not in verdict.sentence


@pytest.mark.parametrize("changed", [{"misaligned_share": 0.1}, {"misaligned_share": 1.0, "on_gpu": False}])
def test_padding_is_not_advised_where_it_saves_little(changed):
    assert "pad" not in decide(Evidence(**GPU | {"misaligned_size": 9} | changed)).sentence


def test_a_host_that_waits_for_a_busy_device_is_not_short_of_input():
    assert decide(Evidence(**GPU | {"waited_ms": 8.0})).bound == "arithmetic"


def test_the_larger_part_of_the_idle_time_decides():
    assert decide(Evidence(**GPU | {"busy_ms": 2.0, "waited_ms": 3.9})).bound == "launch overhead"
    assert decide(Evidence(**GPU | {"busy_ms": 2.0, "waited_ms": 4.1})).bound == "input"


@pytest.mark.parametrize("mode", ["fp32", "tf32", "amp", "fp8"])
def test_kernels_of_unknown_names_say_nothing_of_tensor_cores(mode):
    assert "% of it" not in decide(Evidence(**GPU | {"cores_ms": None, "mode": mode})).sentence


@pytest.mark.parametrize(
    ("changed", "bound", "words"),
    [
        ({"busy_ms": 3.0}, "launch overhead", ["70%", "in Python"]),
        ({"busy_ms": 3.0, "waited_ms": 6.0, "loader": "workers"}, "input", ["data.workers"]),
        ({"busy_ms": 3.0, "waited_ms": 6.0, "own": True}, "input", ["waiting for the batch, which", "try more workers of its DataLoader"]),
        ({"busy_ms": 3.0, "own": True}, "launch overhead", ["try a larger batch, or a larger model"]),
        ({"memory_ms": 9.0}, "memory", ["which faster arithmetic does not speed up"]),
        ({"busy_ms": 12.0, "mode": "fp32"}, "arithmetic", ["try precision=amp_bf16, or trainer.compile=default"]),
        ({"mode": "amp_bf16"}, "arithmetic", ["so a smaller model", "trainer.compile=default"]),
        ({"mode": "amp_bf16", "arithmetic_roofline": 0.04}, "arithmetic", ["4% of the limit", "too small", "data.batch_size"]),
    ],
)
def test_on_a_cpu(changed, bound, words):
    verdict = decide(Evidence(**CPU | changed))
    assert verdict.bound == bound
    assert [word for word in words if word not in verdict.sentence] == []


@pytest.mark.parametrize(
    ("changed", "try_this"),
    [
        ({"native": AMPERE}, "try larger layers or a larger data.batch_size."),
        ({"mode": "fp8"}, "try larger layers or a larger data.batch_size."),
        ({"native": AMPERE, "mode": "tf32"}, "try precision=amp or amp_bf16."),
        ({"mode": "fp32"}, "on Tensor Cores; for that try precision=amp, amp_bf16 or tf32."),
        ({"native": TURING, "mode": "fp32"}, "on Tensor Cores; for that try precision=amp."),
        ({"native": TURING, "memory_ms": 9.0}, "try trainer.compile=default, which fuses such operations."),
        ({"native": TURING, "memory_ms": 9.0, "mode": "fp32"}, "operations, or precision=amp, which moves fewer bytes."),
        ({"on_gpu": False, "mode": "fp32"}, "try precision=amp_bf16, or trainer.compile=default."),
        ({"on_gpu": False, "mode": "fp32", "native": frozenset({"fp32", "o0"})}, "of their format; try trainer.compile=default."),
    ],
)
def test_no_format_is_advised_that_would_be_emulated(changed, try_this):
    assert decide(Evidence(**GPU | changed)).sentence.endswith(try_this)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"busy_ms": 2.0, "no_graphs": "G"},
            "try a larger data.batch_size (CUDA graphs, which launch a whole step at once, are no way out: G).",
        ),
        ({"busy_ms": 2.0, "replayed": True}, "try a larger data.batch_size."),
        ({"busy_ms": 2.0, "replayed": True, "no_graphs": "slower than without"}, "try a larger data.batch_size."),
        ({"memory_ms": 9.0, "no_compiling": "C"}, "try precision=bf16_true, which keeps all activations and weights in 16 bits."),
        ({"memory_ms": 9.0, "memory_roofline": 0.1, "no_compiling": "C"}, "try a larger data.batch_size or a larger model."),
        ({"on_gpu": False, "mode": "fp32", "compiled": True}, "try precision=amp_bf16."),
        ({"on_gpu": False, "mode": "fp32", "compiled": True, "native": frozenset({"fp32"})}, "so a smaller model is what is left."),
        ({"on_gpu": False, "mode": "fp32", "no_compiling": "C", "native": frozenset({"fp32"})}, "so a smaller model is what is left."),
    ],
)
def test_nothing_is_advised_that_is_on_or_cannot_be(changed, words):
    sentence = decide(Evidence(**GPU | changed)).sentence
    assert sentence.endswith(words)


def test_several_processes_on_a_cpu_wait_for_one_another():
    alone, together = (decide(Evidence(**CPU | {"busy_ms": 3.0, "devices": count})).sentence for count in (1, 2))
    assert "in Python, which" in alone
    assert "in Python and in waiting for the other processes' gradients, which" in together


def test_times_of_operations():
    product = Operation("mm", "fp16", True, True, ms=4.0, least_ms=2.0, bound="arithmetic")
    small = Operation("mm", "fp16", True, False, ms=1.0, least_ms=0.9, bound="memory")
    norm = Operation("native_batch_norm", "fp32", False, ms=3.0, least_ms=1.5, bound="memory")
    found = times([product, small, norm])
    assert (found["arithmetic_ms"], found["memory_ms"]) == (4.0, 4.0)
    assert found["arithmetic_roofline"] == pytest.approx(0.5)
    assert found["memory_roofline"] == pytest.approx((0.9 + 1.5) / 4)
    assert (found["products_ms"], found["cores_ms"]) == (5.0, 4.0)


def test_of_unknown_limits_products_count_as_arithmetic():
    talk = Operation("c10d.allreduce_", "fp32", False, ms=9.0)  # neither
    found = times([Operation("mm", "fp32", True, ms=4.0), Operation("add", "fp32", False, ms=1.0), talk])
    assert (found["arithmetic_ms"], found["memory_ms"]) == (4.0, 1.0)
    assert (found["arithmetic_roofline"], found["memory_roofline"], found["cores_ms"]) == (None, None, None)
