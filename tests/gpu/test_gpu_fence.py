"""On a CUDA device: no 2:4 product accesses memory behind its operands. An allocator makes each such access a
fault (fence.cpp).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import CUDA_HOME

from mpx.deploy.algorithms import Problem
from mpx.deploy.products import EPILOGUES

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not torch.backends.cusparselt.is_available(), reason="needs cuSPARSELt"),
    pytest.mark.skipif(CUDA_HOME is None, reason="needs nvcc"),
]
# of weights; no multiple of 128, the tile of INT8, in columns
SHAPES = [(64, 576), (32, 32), (96, 96), (160, 352), (3072, 832)]
PRODUCTS = """
import json, sys, torch
library, compress = sys.argv[1:3]
torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, "fence_malloc", "fence_free"))
from mpx.deploy import algorithms
if compress == "pytorch":
    algorithms.compress_2of4 = torch._cslt_compress
ran = 0
for problem in json.loads(sys.stdin.read()):
    call, expected = algorithms._product(algorithms.Problem(**problem))
    for number in range(20):
        try:
            found = call(number)
        except RuntimeError:
            torch.cuda.synchronize()
        else:
            ran += algorithms._right(found, expected)
print(ran)
"""


@pytest.fixture(scope="module")
def fence(tmp_path_factory):
    library = tmp_path_factory.mktemp("fence") / "fence.so"
    stubs = next(Path(CUDA_HOME).rglob("stubs/libcuda.so")).parent
    source = Path(__file__).with_name("fence.cpp")
    nvcc = [f"{CUDA_HOME}/bin/nvcc", "-std=c++20", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*nvcc, source, "-o", library, f"-L{stubs}", "-lcuda"], check=True)
    return library


def products(fence, fmt, shapes, compress="mpx"):
    dtype = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}[fmt]
    result, scaled = ("bfloat16", True) if fmt == "int8" else (dtype, False)
    # the others hang (mpx/deploy/kernels.py)
    ways = [at for at in EPILOGUES if fmt != "fp16" or not at.transposed]
    problems = [
        vars(Problem(dtype, result, *shape, 96, at.bias, scaled, at.transposed))
        for shape in shapes
        for at in ways
    ]
    command = [sys.executable, "-c", PRODUCTS, fence, compress]
    return subprocess.run(command, input=json.dumps(problems), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "int8"])
def test_products_stay_within_their_operands(fence, fmt):
    done = products(fence, fmt, SHAPES)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(SHAPES)


def test_without_memory_behind_the_weight_a_product_faults(fence):
    """If it does not, cuSPARSELt has mended this, and compress_2of4 needs no memory behind the weight."""
    done = products(fence, "int8", SHAPES[:1], compress="pytorch")
    assert "illegal memory access" in done.stderr
