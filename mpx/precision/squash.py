"""tanh and sigmoid as a GPU's special function units compute them, on any device.

tanh is the PTX instruction tanh.approx.f32: the lowest four bits of the operand are dropped, and one of 53 quadratics is evaluated. It
differs from an H200's by at most 1.2·10⁻⁶ (experiments/emulation/squash.py). The sigmoid is 1 / (1 + 2^(−x·log₂e)) with the exponent
rounded to FP32, as in CUDA's __expf.
"""

import csv
import functools
from pathlib import Path

import torch
from torch import Tensor

LOG2E = 1.4426950408889634
TABLE = Path(__file__).parent / "tanh_approx.csv"  # from, c0, c1, c2: c0 + c1·t + c2·t², t = |x| − from
LOWEST_OCTAVE, PER_OCTAVE = -8, 16  # below 2⁻⁸ tanh returns its operand; entries for each power of two


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp2(-(x * LOG2E)))


def tanh_approx(x: Tensor) -> Tensor:
    """x: FP32 of any shape."""
    bits = x.contiguous().view(torch.int32) & 0x7FFFFFF0
    size = bits.view(torch.float32)
    entry = ((bits >> 19) - ((127 + LOWEST_OCTAVE) * PER_OCTAVE - 1)).clamp_(0, len(_table(x.device)) - 1)
    start, c0, c1, c2 = _table(x.device)[entry].unbind(-1)
    t = (size - start).clamp_(max=4.0)  # at infinity 0 · t must not be NaN
    return torch.copysign(c0 + t * (c1 + t * c2), x)


@functools.cache
def _table(device: torch.device) -> Tensor:
    """FP32 [1 + 16 per octave + 1, 4]. The first row serves values below the octaves, the last one values above them."""
    with open(TABLE, newline="") as file:
        rows = torch.tensor([[float(value) for value in row] for row in list(csv.reader(file))[1:]], dtype=torch.float64)
    octaves = torch.arange(LOWEST_OCTAVE, 3).double()
    starts = (torch.exp2(octaves)[:, None] * (1 + torch.arange(PER_OCTAVE) / PER_OCTAVE)).flatten()
    starts = torch.cat((torch.zeros(1), starts, torch.tensor([8.0])))
    return rows[torch.searchsorted(rows[:, 0].contiguous(), starts, right=True) - 1].float().to(device)
