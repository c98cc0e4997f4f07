"""What tanh.approx.f32 computes: measured on a CUDA device, written as the table of quadratics that mpx/precision/squash.py evaluates.

$ python experiments/emulation/squash.py FILE.csv
"""

import csv
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from collecting import file_to_write

PIECES = {-5: 2, -4: 2, -3: 4, -2: 4, -1: 4, 0: 8, 1: 16, 2: 8}  # per octave; one below, found by looking where a quadratic stops to fit
POINTS = 1 << 19  # per octave: all that it tells apart


def main() -> None:
    path = file_to_write()
    code = 'template <typename T> T f(T x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }'
    tanh = torch.cuda.jiterator._create_jit_fn(code)
    rows = [(0.0, 0.0, 1.0, 0.0)]  # up to 2⁻⁸ the operand itself
    for octave in range(-8, 3):
        x = 2.0**octave * (1 + torch.arange(POINTS, dtype=torch.float64) / POINTS)
        y = tanh(x.float().cuda()).double().cpu()
        for xs, ys in zip(x.chunk(PIECES.get(octave, 1)), y.chunk(PIECES.get(octave, 1)), strict=True):
            t = xs - xs[0]
            powers = torch.stack((torch.ones_like(t), t / t[-1], (t / t[-1]) ** 2), 1)
            c0, c1, c2 = torch.linalg.lstsq(powers, ys[:, None]).solution.flatten().tolist()
            rows.append((xs[0].item(), c0, c1 / t[-1].item(), c2 / t[-1].item() ** 2))
    assert (tanh(torch.linspace(8, 100, 1000, device="cuda")) == 1).all()
    rows.append((8.0, 1.0, 0.0, 0.0))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("from", "c0", "c1", "c2"))
        writer.writerows([repr(value) for value in row] for row in rows)


if __name__ == "__main__":
    main()
