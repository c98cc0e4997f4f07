"""What the rows of a benchmark on a CPU have: every way is measured, or says why not."""

from mpx.bench.kernels import attention, conv, conv_plans, lstm
from mpx.bench.kernels.conv_layers import DIRECTIONS, MEASURED


def convolutions(rows):
    has_all(rows, conv)
    measured = {(row["direction"], row["layout"], row["algorithm"]) for row in rows if row["ms"] and row["format"] == "bf16"}
    assert len(measured) == 3 * 3
    assert {row["reason"] for row in rows if row["format"] == "tf32"} == {"CPUs have no TF32"}
    one_by_one = [row for row in rows if row["algorithm"] == conv_plans.ALL]
    found = {(row["layer"], row["direction"], row["format"]) for row in one_by_one}
    assert len(found) == len(one_by_one) == 3 * len(DIRECTIONS) * len(MEASURED)
    assert {row["reason"] for row in one_by_one} == {"no CUDA device", "CPUs have no TF32"}
    assert not any(row["plan"] for row in one_by_one)


def lstms(rows):
    has_all(rows, lstm)
    assert {(row["direction"], row["format"]) for row in rows if row["ms"]} >= {(way, "fp32") for way in lstm.DIRECTIONS}


def attentions(rows):
    has_all(rows, attention)
    measured = [row for row in rows if row["ms"]]
    assert {(row["direction"], row["format"]) for row in measured} >= {(way, "fp32") for way in attention.DIRECTIONS}
    assert {(row["kernel"], row["mask"]) for row in measured} == {
        (kernel, mask) for kernel in ("flash", "math") for mask in attention.MASKS
    }


def has_all(rows, module):
    assert all(set(row) == set(module.COLUMNS) for row in rows)
    assert all(bool(row["ms"]) != bool(row["reason"]) for row in rows)


OF = {"conv": convolutions, "lstm": lstms, "attention": attentions}
