"""Generate the card (README.md) from results.csv."""

import math
from collections import Counter, defaultdict

LIMIT = 0.1
CARD = """# Does the emulation round where the hardware rounds?

**Question.** On a CPU mpx emulates TF32, FP16, BF16 and FP8. Does the emulation agree with a GPU? Infinities and NaN should be in the same
places. Over finite values the distance ‖emulated − native‖ should be at most {limit} of the format's own error ‖native − exact‖, where
*exact* is float64 without rounded operands. The ratio of the two is shown below.

**Setup.** {setup}. Random operands with exponents spread by at most {spreads};
forward pass and all gradients. Both sides run on the GPU, the emulation in IEEE FP32.

**Command.** `python experiments/emulation/run.py`

Each row shows the worst value over all operands, gradients and spreads.

- *As the hardware*: the ratio of an emulation with the same roundings that also adds like the hardware. It multiplies rounded operands on
  Tensor Cores, computes weight gradients of convolutions as one product in 1, 4, 16 or 64 parts, and computes these and TF32 products
  step by step like consecutive Tensor Core instructions; the nearest result counts. What remains is unknown.
- *Apart*: the distance between emulations that differ only in their sums, which is the effect that the order of sums can have.
- *Inf and NaN*: the largest share of them among a value's elements. If they are not in the same places, the column shows how many are not,
  and how close the exact values of those are to 65,520, from which FP16 rounds to infinity.

**To be measured again**: the rows of `lstm` come from an emulation that followed each of cuDNN's three algorithms. It has the standard
algorithm's roundings for all recurrent layers now, so those of the other two (FP16 and TF32 up to 128 units, FP16 64×128×512) are larger.

{table}

{within} of {values} values are within {limit}. {incomparable} have no ratio, because none of their elements is finite both native and
emulated. Of the {over} others {explained} are explained: *as the hardware* is within {limit}, or *apart* is at least nine tenths of the
ratio. **{rest} are not explained**: {where}.

## What we learnt

- **How TF32 operands are rounded.** cuBLAS rounds to nearest even in every shape and layout that was tried. cuDNN's convolutions do so in
  the forward pass and for the input's gradient. Their weight gradient for 64 or more channels (`sm90_xmma_wgrad_indexed…`) truncates
  instead, and so does mpx (`mpx/precision/emulate.py`). With sums on Tensor Cores the emulation is then equal **bit for bit**, except for
  the weight gradients of convolutions with few channels, which round ties away from zero.
- **TF32 is a permission.** cuBLAS computes some products with short sums in FP32 although TF32 is allowed: of 17 shapes in four layouts,
  seven products, all with sums of 32 or 48 (`tf32_products.csv`). The emulation always rounds.
- **FP16 results depend on the order of sums.** A Tensor Core truncates the bits that it shifts out, so a long sum sometimes falls on the
  other side of an FP16 rounding boundary: 0.1 to 8 % of the elements differ. More of FP8's BF16 results differ, since its fast sums keep
  fewer bits. Convolutions with long sums (FP16 weight gradients) therefore exceed {limit}.
- **How a Tensor Core adds.** An H200 takes 16 FP16 products (8 of TF32) and the current sum, truncates each two bits below the last FP32
  bit of the largest, adds them, and truncates the sum to FP32 (`in_steps` in `hardware.py`; earlier GPUs take fewer products and keep
  fewer bits, Fasi et al. 2021). The FP16 weight gradient of stride 2 is at 0.15 from the emulation and at 0.12 from the nearest sum that
  torch computes. It is within 0.007 of such consecutive sums, and most of it is equal to the bit.
- **cuDNN has three LSTM algorithms**, and the emulation has the roundings of the first for all recurrent layers
  (`mpx/precision/recurrent.py`). (1) The standard algorithm rounds what it stores. (2) A persistent algorithm for up to 128 units in FP16
  and TF32 has an FP32 recurrence and uses `tanh.approx.f32` (error up to 8·10⁻⁶, also in FP32). (3) The algorithm that PyTorch selects in
  FP16 by its own rule (one layer, more than 128 units, units and inputs divisible by 128, batch divisible by 8 and at most 128) rounds
  neither the recurrent products nor the cell state.
- **A recurrence amplifies differences.** In FP16 one value in a thousand falls on the other side of a rounding boundary, because of its sum
  or the last bit of a function. Over six steps, and with gradients that add hundreds of such values, two fifths of the elements differ.
- **Infinities** are in the same places, with two exceptions. One element in a million, whose exact value lies within 0.02 % of the limit,
  depends on the order of the sum. And **one kernel is faulty**: `sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16f16…` (forward, 16
  channels, cuDNN 9.19) returns 0 for results below −65,520. All 478 elements that should have been −∞ were 0, and all 462 above the limit
  were +∞. Loss scaling cannot detect such an overflow. The emulation returns −∞.
- **What is not explained** are LSTMs where cuDNN runs its second or third algorithm, and the gradients of biases.

**Trade-off and limits.** One GPU generation and library version. The emulation is made to study accuracy, overflow and underflow. It is
bit-equal only to the kernels that were studied. A compiled step may cast to FP8 without rounding to BF16 first, as eager steps and the
emulation do: it is then about half of FP8's own error (3.6 %) apart from them (tests/gpu/test_gpu_fp8.py).

**Attribution.** Formats: IEEE 754, arXiv:2209.05433. Sums: Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores,
PeerJ Computer Science 2021, doi:10.7717/peerj-cs.330. Kernels: cuBLAS, cuDNN.
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
        finite = [row for row in found if comparable(row)]
        ratio, hardware, apart = (max(float(row[key]) for row in finite) for key in ("ratio", "ratio_hardware", "apart"))
        share = f"{max(float(row['mismatches']) for row in finite):.2%}" if fmt != "tf32" else "–"
        same = _non_finite(found)
        mark = f"{ratio:.3f}" if ratio <= LIMIT else f"**{ratio:.3f}**"
        lines.append(f"| {operation} | {sizes} | {fmt} | {kind} | {mark} | {hardware:.3f} | {apart:.3f} | {share} | {same} |")
    return "\n".join(lines)


def _spreads(rows: list[dict]) -> str:
    widest = {row["operation"]: 0 for row in rows}
    for row in rows:
        widest[row["operation"]] = max(widest[row["operation"]], int(row["spread"]))
    return ", ".join(f"±{spread} ({operation})" for operation, spread in widest.items())


def _non_finite(rows: list[dict]) -> str:
    """Whether infinities and NaN are in the same places, their largest share of a value's elements, and the differences."""
    most, swapped = (max(float(row[key]) for row in rows) for key in ("non_finite", "swapped"))
    if zero := max(float(row["made_zero"]) for row in rows):
        return f"{most:.2%}; {zero:.2%} are 0 instead of −infinity" + (f", {swapped * 1e6:.0f} in a million otherwise" if swapped else "")
    if not swapped:
        return f"same ({most:.2%})" if most else "none"
    hardware, nearest = max(float(row["swapped_hardware"]) for row in rows), max(float(row["from_overflow"] or 0) for row in rows)
    return f"all of {most:.2%} but {swapped * 1e6:.0f} in a million, as the hardware {hardware * 1e6:.0f}; within {nearest:.0e} of 65,520"


def comparable(row: dict) -> bool:
    """Whether any element of the value is finite on both sides; otherwise its ratio is NaN."""
    return math.isfinite(float(row["ratio"]))


def explained(row: dict) -> bool:
    """Whether the hardware's sums and functions bring the value within the limit, or the order of sums has an effect as large."""
    ratio, hardware, apart = (float(row[key]) for key in ("ratio", "ratio_hardware", "apart"))
    return hardware <= LIMIT or apart >= 0.9 * ratio


def report(rows: list[dict]) -> str:
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}, cuDNN {row['cudnn']}" for row in rows}))
    compared = [row for row in rows if comparable(row)]
    over = [row for row in compared if float(row["ratio"]) > LIMIT]
    rest = [row for row in over if not explained(row)]
    where = Counter(f"{row['operation']} {row['sizes']} {row['format']}" for row in rest)
    return CARD.format(
        setup=about, spreads=_spreads(rows), table=table(rows), limit=LIMIT, values=len(rows),
        within=len(compared) - len(over),
        incomparable=len(rows) - len(compared), over=len(over), explained=len(over) - len(rest), rest=len(rest),
        where=", ".join(f"{case} ({count})" for case, count in where.most_common()),
    )  # fmt: skip
