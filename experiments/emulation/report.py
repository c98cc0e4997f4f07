"""The card (README.md) of results.csv."""

from collections import Counter, defaultdict

LIMIT = 0.1
CARD = """# Does the emulation round where the hardware rounds?

**Question.** On a CPU mpx emulates TF32, FP16, BF16 and FP8. Is that what a GPU computes: infinities and NaN in the same places, and over
finite values a distance ‖emulated − native‖ of at most {limit} of the format's own error ‖native − exact‖ (exact: float64, operands not
rounded)?

**Setup.** {setup}. Random operands whose exponents are spread over up to ±12 powers of two; forward and all gradients. Both sides run on
the GPU, the emulation in IEEE FP32.

**Command.** `python experiments/emulation/run.py`

Worst of all values and spreads. *With Tensor Core sums*: the same emulation, its rounded operands multiplied on Tensor Cores, so that the
order and width of the hardware's sums are emulated too, as far as PyTorch's products have the same ones. *Apart*: how far these two
emulations, which differ in nothing but their sums, are from each other: as far as the order of sums alone can carry a value.

{table}

{within} of {values} values are within {limit}. Of the {over} others sums explain {explained}: with Tensor Core sums they are within
{limit}, or *apart* is at least nine tenths of the ratio. **Not explained are {rest}**: {where}.

## What we learnt

- **How TF32 operands are rounded.** cuBLAS rounds to nearest even, in every shape and layout tried; so do cuDNN's convolutions forward and
  for the input's gradient. Its weight gradient for 64 channels and more (`sm90_xmma_wgrad_indexed…`) drops the low bits instead. mpx does
  the same (`mpx/precision/emulate.py`). With the sums on Tensor Cores the emulation is then equal **bit for bit**, but for the weight
  gradients of convolutions of few channels, which round ties away from zero.
- **FP16 results depend on how sums are added up.** A Tensor Core cuts off what it shifts out, and a long sum ends on the other side of
  an FP16 rounding now and then: 0.1 to 6 % of the elements differ, by one unit in the last place (of FP8's BF16 results more: its fast
  sums keep fewer bits). That takes convolutions with long
  sums (FP16 weight gradients) above {limit}; with Tensor Core sums they are at 0.09 to 0.12.
- **cuDNN's elementwise arithmetic is known.** It was read off a single step on one-hot operands in FP32: the order of every product
  and sum, which of them are fused, `tanhf` or the instruction `tanh.approx.f32`, and a sigmoid of `__expf` and an approximate division
  (`mpx/precision/lstm.py`). The two functions are not reproduced to the bit, but to 1.3·10⁻⁷ and to the last place
  (`mpx/precision/squash.py`). With Tensor Core sums a BF16 LSTM of 256 units agrees in every bit, and so do products in FP16 and BF16.
- **cuDNN has three LSTM algorithms.** The standard one; a persistent one for up to 128 units in FP16 and TF32, with an FP32 recurrence
  and `tanh.approx` (up to 8·10⁻⁶ off, also in FP32, where an LSTM of 64 units is less exact than one of 512); and the one that PyTorch
  asks for in FP16 where its rule says so (one layer, units and inputs divisible by 128, batch by 8 and at most 128), which rounds neither
  the recurrent products nor the cell state. mpx follows all three.
- **Most of what is left is sums.** In FP16 one sum in a thousand ends on the other side of a rounding; a recurrence of six steps and a
  gradient that sums hundreds of such values make that up to 40 % of the elements, by one unit in the last place.
- **What sums do not explain.** The persistent kernel in FP16: with Tensor Core sums it stays as far as before, so its recurrence adds up,
  or rounds, in a way that we have not found. The recurrent weights' gradient of a TF32 LSTM of 128 units is summed from unrounded FP32
  operands, which the emulation rounds: the hardware is more exact there than TF32 promises. The rest is close to {limit}.

**Trade-off and limits.** One GPU generation and library version. Emulation is about accuracy, overflow and underflow: bit equality with a
library's kernel holds where the kernel is the one that was studied.

**Attribution.** Formats: IEEE 754, arXiv:2209.05433. Kernels: cuBLAS, cuDNN.
"""


def table(rows: list[dict]) -> str:
    groups = defaultdict(list)
    for row in rows:
        kind = "forward" if row["value"] == "result" else "gradients"
        groups[row["operation"], row["sizes"], row["format"], kind].append(row)
    lines = [
        "| operation | sizes | format | | ratio | as the hardware | apart | elements that differ | inf and NaN |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (operation, sizes, fmt, kind), found in groups.items():
        ratio, hardware, apart = (max(float(row[key]) for row in found) for key in ("ratio", "ratio_hardware", "apart"))
        share = f"{max(float(row['mismatches']) for row in found):.2%}" if fmt != "tf32" else "–"
        same = "same" if all(str(row["same_non_finite"]) == "True" for row in found) else "**differ**"
        mark = f"{ratio:.3f}" if ratio <= LIMIT else f"**{ratio:.3f}**"
        lines.append(f"| {operation} | {sizes} | {fmt} | {kind} | {mark} | {hardware:.3f} | {apart:.3f} | {share} | {same} |")
    return "\n".join(lines)


def explained(row: dict) -> bool:
    """Whether it falls below the limit with the hardware's sums and functions, or other sums alone carry as far."""
    ratio, hardware, apart = (float(row[key]) for key in ("ratio", "ratio_hardware", "apart"))
    return hardware <= LIMIT or apart >= 0.9 * ratio


def report(rows: list[dict]) -> str:
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}, cuDNN {row['cudnn']}" for row in rows}))
    over = [row for row in rows if float(row["ratio"]) > LIMIT]
    rest = [row for row in over if not explained(row)]
    where = Counter(f"{row['operation']} {row['sizes']} {row['format']}" for row in rest)
    return CARD.format(
        setup=about, table=table(rows), within=len(rows) - len(over), values=len(rows), limit=LIMIT, over=len(over),
        explained=len(over) - len(rest), rest=len(rest), where=", ".join(f"{case} ({count})" for case, count in where.most_common()),
    )  # fmt: skip
