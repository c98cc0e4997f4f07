"""experiments/emulation: sums as a Tensor Core takes them, and what the card says of infinities. The
measurement itself needs a GPU.
"""

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


def test_every_linear_layer_of_the_study_multiplies_in_fp8():
    """Of other sizes, rows that say FP8 would be BF16's."""
    assert all(Layers(every=True).take(torch.empty(m, k), torch.empty(n, k)) for m, n, k in run.LINEARS)
