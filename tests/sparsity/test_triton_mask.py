"""The Triton kernel's masks are those of the reference, bit for bit: on a CPU through Triton's interpreter."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

MANY = """  # many weights in one launch
from functools import partial

import torch
from mpx.sparsity import mask_launch
from mpx.sparsity.patterns import NofM

torch.manual_seed(0)
LAST = torch.channels_last
LAYOUTS = (
    (lambda randn: randn(24, 52), "neighbours"),
    (lambda randn: randn(5, 8, 3, 3).to(memory_format=LAST), "neighbours"),
    (lambda randn: randn(7, 12, 1, 1), "neighbours"),
    (lambda randn: randn(6, 4096), "neighbours"),  # several programs
    (lambda randn: randn(5, 8, 3, 3), "strided"),
    (lambda randn: randn(4, 7), "strided"),
    (lambda randn: randn(4, 6, 3, 2).to(memory_format=LAST), "strided"),
    (lambda randn: randn(3, 5, 7), "strided"),
    (lambda randn: randn(2, 9, 2, 3, 2), "strided"),
    (lambda randn: randn(16, 24).t(), "strided"),
    (lambda randn: randn(300, 129), "strided"),  # several programs
    (lambda randn: randn(65)[1:].view(4, 16), "strided"),  # not where four are read at once
    (lambda randn: randn(8, 16)[:, ::2], None),
    (lambda randn: randn(4, 8, 3, 2).transpose(2, 3), None),
    (lambda randn: randn(1, 8).expand(4, 8), None),
    (lambda randn: torch.randn(4, 8).double(), None),
    (lambda randn: randn(0, 8), None),
)
values = (
    lambda weight: weight, lambda weight: (2 * weight).round(), lambda weight: weight * 0, lambda weight: weight * 0 - 3,
    lambda weight: (weight * 4).round() * 2.0**-149,  # subnormal
    lambda weight: weight.where(weight.abs() < 1, torch.nan).where(weight < 1, -torch.inf),
)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for change in values:
        weights, ways = [], []
        for make, way in LAYOUTS:
            weight = make(partial(torch.randn, dtype=dtype))
            weights.append(weight.copy_(change(weight)) if way else weight)
            ways.append(way)
        for n in (1, 2, 3) if change is values[0] and dtype is torch.float32 else (2,):
            found = mask_launch.masks_by_place(weights, n)
            assert sorted(found) == [place for place, way in enumerate(ways) if way], sorted(found)
            for place, mask in found.items():
                exact = NofM(n, 4).mask(weights[place])
                assert mask.dtype == torch.bool and mask.stride() == weights[place].stride()
                assert torch.equal(mask, exact), (dtype, n, weights[place].shape, weights[place].stride())
        launches = mask_launch._launches_of(weights)
        assert {launch.neighbours for launch in launches} == {True, False} and len(launches) == 2
        neighbours = next(launch.places for launch in launches if launch.neighbours)
        assert neighbours == [place for place, way in enumerate(ways) if way == "neighbours"]
print("as the reference")
"""


@pytest.mark.slow
def test_masks_are_the_references():
    """In one process, since Triton reads TRITON_INTERPRET when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", MANY], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as the reference\n"
