"""TF32 is allowed: which products does cuBLAS compute in FP32 all the same?

$ python experiments/emulation/tf32_products.py FILE.csv    # on a CUDA device, in seconds
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from collecting import file_to_write, write

from mpx.precision.rounding import to_tf32
from mpx.precision.switches import tf32_products

SHAPES = (  # m, n, k of [m, k] × [k, n]
    (512, 128, 64), (512, 128, 32), (512, 128, 320), (128, 512, 64), (256, 512, 48), (384, 128, 64), (256, 512, 64), (64, 512, 512),
    (16, 256, 512), (1280, 128, 32), (768, 256, 32), (256, 256, 256), (512, 64, 64), (640, 384, 32), (64, 10, 64), (128, 10, 512),
    (64, 64, 64),
)  # fmt: skip
COLUMNS = ("m", "n", "k", "layout", "computed_in", "from_unrounded", "from_rounded")


def products() -> Iterator[dict]:
    for m, n, k in SHAPES:
        for layout in ("NN", "NT", "TN", "TT"):  # T: this operand lies transposed in memory
            torch.manual_seed(0)
            a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
            with tf32_products():
                found = laid_out(a, layout[0]) @ laid_out(b, layout[1])
            unrounded, rounded = a.double() @ b.double(), to_tf32(a).double() @ to_tf32(b).double()
            distances = [((found - exact).norm() / unrounded.norm()).item() for exact in (unrounded, rounded)]
            computed_in = "fp32" if distances[0] < distances[1] else "tf32"
            yield dict(zip(COLUMNS, (m, n, k, layout, computed_in, *(f"{distance:.1e}" for distance in distances)), strict=True))


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    return x.t().contiguous().t() if layout == "T" else x


if __name__ == "__main__":
    write(file_to_write(), COLUMNS, products())
