"""The Triton kernel's masks are those of the reference, bit for bit: on a CPU through Triton's interpreter."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import torch
from mpx.sparsity.patterns import mask_2of4
from mpx.sparsity.triton_mask import mask_and_prune

torch.manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for shape in ((1, 4), (19, 52)):
        for weight in (torch.randn(shape), torch.randint(-2, 3, shape).float(), torch.zeros(shape), torch.full(shape, -3.0)):
            weight = weight.to(dtype)
            mask, pruned = mask_and_prune(weight, groups_each=16)
            assert mask.dtype == torch.bool and pruned.dtype == dtype
            assert torch.equal(mask, mask_2of4(weight)), (dtype, shape)
            assert torch.equal(pruned, weight * mask), (dtype, shape)
every = torch.cartesian_prod(*[torch.arange(-3.0, 4.0)] * 4)  # all orders and ties of four
assert torch.equal(mask_and_prune(every, groups_each=64)[0], mask_2of4(every))
for wrong in (torch.zeros(4), torch.zeros(2, 6), torch.zeros(4, 8).t()):
    try:
        mask_and_prune(wrong, groups_each=16)
    except ValueError as error:
        assert "multiple of 4" in str(error)
    else:
        raise AssertionError(wrong.shape)
print("as the reference")
"""


def test_masks_are_the_references():
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as the reference\n"
