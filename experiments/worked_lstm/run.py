"""The courses' LSTM and softmax examples in every format: results.csv holds every number, README.md how far each format is off.

$ python experiments/worked_lstm/run.py   # a few seconds on a CPU, and the same numbers on any
"""

import csv
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import worked_example as example

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, markdown

from mpx.precision.emulate import Emulate
from mpx.precision.rounding import ROUND

HERE = Path(__file__).parent
EMULATED = ("tf32", "fp16", "bf16")  # there is no LSTM in FP8: precision=fp8 runs it in BF16
STORED = ("fp16", "bf16")  # formats in which a tensor can be kept
COLUMNS = ("quantity", "printed", "fp64", "fp32", *EMULATED)
GROUPS = {  # row of the table: beginnings of the names of its quantities
    "gates a, i, f, o": tuple(f"forward {gate}[" for gate in example.GATES),
    "state, out": ("forward state", "forward out"),
    "out − target": ("backward D_out",),
    "δ of gates, state and out": (*(f"backward d_{gate}[" for gate in example.GATES), "backward d_state", "backward d_out", "backward dh_"),
    "δ of inputs": ("backward d_x",),
    "gradients of W, U, b": ("gradients",),
    "W, U, b after one step": ("updated",),
    "softmax": ("softmax",),
}
CARD = """# How far off is each format, in an example that can be checked by hand?

**Question.** Two LSTM time steps forward, back-propagation through time and one step of gradient descent, worked out on paper in a
course, and a softmax: does mpx's LSTM reproduce the printed figures in FP32, and how far off are TF32, FP16 and BF16?

**Setup.** One unit, two inputs, two time steps, ½ Σ (out − target)², learning rate 0.1: [example.yaml](example.yaml) has all the
settings and printed figures. `torch.nn.LSTM` as `mpx/models/lstm.py` builds it; gates reordered to PyTorch's i, f, g = a, o; the
example's b is `b_ih`, and `b_hh` is frozen at zero. FP32 is native; the other formats are emulated by mpx on the CPU: operands and
results of every matrix product and LSTM kernel are rounded, forward and backward (of TF32 the operands only); weights and their update
stay FP32. Softmax: input and result rounded to the formats that are stored, which TF32 is not. What `nn.LSTM` does not return: gates by
their formula; δ of the gates as the gradient of the bias of a copy of the weights per time step.

**Command.** `python experiments/worked_lstm/run.py`

FP32 is within {printed:.1e} of the {count} figures that are printed with five or more decimals (some were worked out on paper from others
that had been cut off to five). Largest deviation from the same example in float64, relative to each number:

{table}

[results.csv](results.csv) has each number in each format.

**What we learnt.**

- The order of the formats is that of their mantissas: 23, 10, 10 and 7 bits. TF32 is ahead of FP16 because its results stay in FP32.
- Gates, states and outputs are off by less than one step of the format. Then cancellation multiplies the error. The first output is 0.536
  and its target 0.5, so out − target is off by 5 to 15 times more, and the δ behind it by 13 to 36 times, by format.
- The updated weights hardly change if they are kept in FP32. If they were stored in the format, of their 16 updates {lost} would be
  lost, because they are smaller than the distance to the next number. This is why FP32 master weights exist.
- In the softmax, FP16's smallest probability, 2.9e-5, is below its smallest normal number and has fewer bits than the others. Autocast runs
  softmax in FP32.
- PyTorch's two LSTM biases get the same gradient, so plain SGD on both moves their sum twice as far as in the example.

**Trade-off and limits.** One example of one unit shows the size of rounding errors, not their effect on training. Emulation sums in FP32
and rounds once per operation; a kernel on a GPU may round in other places. There is no FP8 here: PyTorch has no FP8 LSTM.

**Attribution.** The LSTM example is Aidan Gomez's, *Backpropogating an LSTM: A Numerical Example* (2016), as the courses teach it; LSTM:
Hochreiter and Schmidhuber (1997); master weights: Micikevicius et al., *Mixed Precision Training*, arXiv:1710.03740.
"""


def results() -> list[dict]:
    """One row per printed quantity, with COLUMNS."""
    found = {"printed": example.printed(), "fp64": example.numbers(torch.float64) | softmax("fp64")}
    for fmt in ("fp32", *EMULATED):
        with nullcontext() if fmt == "fp32" else Emulate(fmt):
            found[fmt] = example.numbers(torch.float32) | softmax(fmt)
    return [{"quantity": name} | {column: found[column][name] for column in COLUMNS[1:]} for name in found["printed"]]


def softmax(fmt: str) -> dict[str, float]:
    """A softmax kernel computes in FP32 whatever it reads and writes, so rounding its input and its result is what it does."""
    x = torch.tensor(example.EXAMPLE["softmax_of"], dtype=torch.float64 if fmt == "fp64" else torch.float32)
    return {f"softmax p {i}": p for i, p in enumerate(stored(stored(x, fmt).softmax(0), fmt).tolist(), start=1)}


def stored(x: torch.Tensor, fmt: str) -> torch.Tensor:
    return ROUND[fmt](x) if fmt in STORED else x


def deviation(rows: list[dict], beginnings: tuple[str, ...], fmt: str) -> float:
    """Largest |x − float64| ÷ |float64| of a group; δf at the first step, which is zero in every format, has none."""
    group = [row for row in rows if row["quantity"].startswith(beginnings) and row["fp64"]]
    return max(abs(row[fmt] - row["fp64"]) / abs(row["fp64"]) for row in group)


def lost_updates(rows: list[dict], fmt: str) -> int:
    """How many of the 16 weights would round back to themselves after the step, were they stored in `fmt`."""
    after = {row["quantity"].removeprefix("updated "): row["fp64"] for row in rows if row["quantity"].startswith("updated")}
    given = {f"{name} {key}": value for name in "WUb" for key, value in example.named(example.weights(name))}
    before, after = (torch.tensor([values[name] for name in given], dtype=torch.float32) for values in (given, after))
    return int((stored(before, fmt) == stored(after, fmt)).sum())


def card(rows: list[dict]) -> str:
    formats = ("fp32", *EMULATED)
    lines = [[name, *(f"{deviation(rows, start, fmt):.1e}" for fmt in formats)] for name, start in GROUPS.items()]
    lost = {fmt: f"{lost_updates(rows, fmt)} of 16" for fmt in ("fp32", *STORED)}
    lines.append(["updates lost, were weights stored so", *(lost.get(fmt, "–") for fmt in formats)])
    full = [row for row in rows if row["quantity"] != "forward state[1]"]  # that one is printed with four decimals
    return CARD.format(
        printed=max(abs(row["fp32"] - row["printed"]) for row in full),
        count=len(full),
        table=markdown(["", *formats], lines),
        lost=" and ".join(f"{lost_updates(rows, fmt)} ({fmt.upper()})" for fmt in STORED),
    )


def main() -> None:
    Arguments().parse_args()
    rows = results()
    with open(HERE / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (HERE / "README.md").write_text(card(rows))
    print(card(rows))


if __name__ == "__main__":
    main()
