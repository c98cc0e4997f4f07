"""experiments/emulation: sums as a Tensor Core takes them, and what the card says of infinities. The measurement itself needs a GPU."""

import csv

import pytest
import torch
from experiment import EXPERIMENTS, script

from mpx.precision.fp8 import Layers

hardware, report, run = (script(f"emulation/{name}.py") for name in ("hardware", "report", "run"))


@pytest.mark.parametrize("takes", [8, 16])
def test_sums_of_few_bits_are_exact(takes):
    torch.manual_seed(0)
    a, b = torch.randint(-99, 99, (5, 50)).float(), torch.randint(-99, 99, (50, 3)).float()
    assert torch.equal(hardware.in_steps(a, b, takes), a @ b)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([1.0] + [2**-25] * 4, 1 + 2**-23),  # two bits below the last of 1.0 are kept until the sum is cut off
        ([1.0] + [2**-26] * 7, 1.0),  # three bits below are lost one by one
        ([-1.0] + [-(2**-25)] * 7, -1 - 2**-23),  # towards zero, also from below
        ([1.0] + [0.0] * 7 + [2**-25] * 3, 1.0),  # the sum so far holds no more than FP32
        ([2**-25] * 8 + [1.0], 1 + 2**-22),  # and small ones that come first are not lost
    ],
)
def test_what_an_instruction_cuts_off(terms, expected):
    ones = torch.ones(len(terms), 1)
    assert hardware.in_steps(torch.tensor([terms]), ones, 8).item() == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"non_finite": "0", "swapped": "0", "made_zero": "0"}, "none"),
        ({"non_finite": "0.05", "swapped": "0", "made_zero": "0"}, "same (5.00%)"),
        ({"non_finite": "0.0035", "swapped": "0", "made_zero": "0.0036"}, "0.35%; 0.36% are 0 instead of −infinity"),
        (
            {"non_finite": "0.7", "swapped": "0.000001", "made_zero": "0", "swapped_hardware": "0", "from_overflow": "6e-05"},
            "all of 70.00% but 1 in a million, as the hardware 0; within 6e-05 of 65,520",
        ),
    ],
)
def test_where_infinities_are(row, said):
    assert report._non_finite([row]) == said


def test_a_value_without_a_finite_element_is_not_within_the_limit():
    with (EXPERIMENTS / "emulation" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    text = report.report(rows)
    assert sum(row["ratio"] == "nan" for row in rows) == 8
    assert "413 of 581 values are within 0.1. 8 have no ratio" in text
    assert "nan" not in text


def test_every_linear_layer_of_the_study_multiplies_in_fp8():
    """Of other sizes, rows that say FP8 would be BF16's."""
    assert all(Layers(every=True).take(torch.empty(m, k), torch.empty(n, k)) for m, n, k in run.LINEARS)
