"""experiments/emulation: sums as a Tensor Core takes them, and what the card says of infinities. The measurement itself needs a GPU."""


import pytest
import torch
from experiment import script

from mpx.precision.fp8 import Layers

hardware, run = (script(f"emulation/{name}.py") for name in ("hardware", "run"))


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


def test_every_linear_layer_of_the_study_multiplies_in_fp8():
    """Of other sizes, rows that say FP8 would be BF16's."""
    assert all(Layers(every=True).take(torch.empty(m, k), torch.empty(n, k)) for m, n, k in run.LINEARS)
