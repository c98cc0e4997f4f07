"""A kernel is checked before it is timed, timed against a known truth, and refused with a reason."""

import pytest
import torch

from mpx.bench.kernels.work import RESULT, Work, against, ladder, one_line, timed, too_slow

CPU = torch.device("cpu")
ONE = torch.ones(3)


def slept(clock, seconds, **kwargs):
    return lambda: Work(lambda: clock.sleep(seconds) or ONE, against(lambda: ONE.double(), 1e-6), **kwargs)


def test_rates_are_those_of_a_call_that_sleeps(clock):
    row = timed(slept(clock, 0.01, flops=3e9, moved=2e8), CPU)
    assert tuple(row) == RESULT
    assert row["ms"] == pytest.approx(10)
    assert row["tflops_per_s"] == pytest.approx(0.3)
    assert row["gb_per_s"] == pytest.approx(20)
    assert (row["relative_error"], row["reason"]) == (0.0, None)


def test_time_of_a_graph_is_shared_among_its_executions(clock):
    assert timed(slept(clock, 0.02, flops=1.0, repeats=10), CPU)["ms"] == pytest.approx(2)


@pytest.mark.parametrize("wrong", [ONE * 1.1, ONE * float("nan"), -ONE])
def test_a_wrong_result_is_not_timed(wrong):
    called = []
    row = timed(lambda: Work(lambda: called.append(1) or wrong, against(lambda: ONE.double(), 1e-3), flops=1.0), CPU)
    assert row["reason"].startswith("wrong result: relative error")
    assert row["ms"] is None
    assert len(called) == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Not\n  so.", "Not so."),
        ("", "RuntimeError"),
        ("Expected all of one dtype. Got Query " + "x" * 120, "Expected all of one dtype."),
        ("word " * 30, "word " * 24 + "…"),
    ],
)
def test_a_long_reason_ends_with_a_sentence_or_a_word(message, reason):
    assert one_line(RuntimeError(message)) == reason


def test_a_refused_kernel_is_a_reason():
    def refuse():
        raise NotImplementedError("no such\nkernel")

    assert timed(refuse, CPU) == dict.fromkeys(RESULT) | {"reason": "no such kernel"}


def test_error_is_relative_to_the_reference():
    assert against(lambda: torch.tensor([3.0, 4.0]).double(), 1.0)(torch.tensor([3.0, 4.5])) == pytest.approx(0.1)


def test_what_would_take_too_long_is_left_out(clock):
    probe = slept(clock, 0.01, flops=100.0)()
    assert too_slow(probe, 500.0, CPU) is None
    assert too_slow(probe, 10_000.0, CPU).startswith("one call would take about 1")


def test_one_probe_that_was_held_up_leaves_nothing_out(clock):
    takes = iter([0.01, 5.0, 0.01, 5.0])
    probe = Work(lambda: clock.sleep(next(takes)), lambda _: 0.0, flops=100.0)
    assert too_slow(probe, 500.0, CPU) is None


def test_sizes_double():
    assert ladder(1024) == [32, 64, 128, 256, 512, 1024]
    assert ladder(8192, steps=3) == [2048, 4096, 8192]
    assert ladder(48) == [48]
    assert ladder(96) == [48, 96]
