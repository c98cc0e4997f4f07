"""The card (README.md) of results.csv."""

import math
from collections import Counter, defaultdict

LIMIT = 0.1
CARD = """# Does the emulation round where the hardware rounds?

**Question.** On a CPU mpx emulates TF32, FP16, BF16 and FP8. Is that what a GPU computes: infinities and NaN in the same places, and over
finite values a distance ‖emulated − native‖ of at most {limit} of the format's own error ‖native − exact‖ (exact: float64, operands not
rounded)?

**Setup.** {setup}. Random operands whose exponents are spread over powers of two, at most {spreads};
forward and all gradients. Both sides run on the GPU, the emulation in IEEE FP32.

**Command.** `python experiments/emulation/run.py`

Worst of all values and spreads. *As the hardware*: the same emulation, nothing rounded otherwise, with the hardware's sums (rounded
operands multiplied on Tensor Cores; the weight gradients of convolutions also as one product in 1, 4, 16 or 64 parts; these and TF32
products also step by step as one Tensor Core instruction after another takes them; the nearest counts)
and, for LSTMs, its own functions (`tanh.approx.f32`, `__expf`), so that whatever is left is something that we do not know. *Apart*: how
far emulations that differ in nothing but their sums are from each other: as far as the order of sums alone can carry a value. *Inf and
NaN*: up to which share of a value's elements they were; where not in the same places, how many were not, and how near to 65,520, from
which FP16 rounds to infinity, the exact values of those lie.

{table}

{within} of {values} values are within {limit}. {incomparable} have no ratio: none of their elements is finite, native or emulated. Of the
{over} others {explained} are explained: as the hardware they are within {limit}, or *apart* is at least nine tenths of the ratio.
**Not explained are {rest}**: {where}.

## What we learnt

- **How TF32 operands are rounded.** cuBLAS rounds to nearest even, in every shape and layout tried; so do cuDNN's convolutions forward and
  for the input's gradient. Its weight gradient for 64 channels and more (`sm90_xmma_wgrad_indexed…`) drops the low bits instead. mpx does
  the same (`mpx/precision/emulate.py`). With the sums on Tensor Cores the emulation is then equal **bit for bit**, but for the weight
  gradients of convolutions of few channels, which round ties away from zero.
- **TF32 is a permission.** cuBLAS computes some products of short sums in FP32 though TF32 is allowed: of 17 shapes in four layouts
  seven products, all with sums of 32 or 48 (`tf32_products.csv`). cuDNN does so for the first step's share of the recurrent weights'
  gradient in the TF32 LSTM of 128 units: with that one product in FP32 its 0.64 become 0.02. The emulation rounds always.
- **FP16 results depend on how sums are added up.** A Tensor Core cuts off what it shifts out, and a long sum ends on the other side of
  an FP16 rounding now and then: 0.1 to 6 % of the elements differ (of FP8's BF16 results more: its fast
  sums keep fewer bits). That takes convolutions with long sums (FP16 weight gradients) above {limit}.
- **What a Tensor Core makes of a sum.** An H200 takes 16 FP16 products (8 of TF32) and the sum so far, cuts each off two bits below the
  last FP32 bit of the largest, adds them up, and cuts the sum off to FP32 (`in_steps` in `hardware.py`; earlier cards take fewer and keep
  fewer bits, Fasi et al. 2021). The FP16 weight gradient of stride 2, 0.15 from the emulation and 0.12 from the nearest sum that
  torch computes, is within 0.007 of sums so taken one after another; most of it is equal to the bit. TF32 LSTMs come nearer, too.
- **cuDNN's LSTMs are known to the bit.** In FP16 and BF16, 64 to 512 units, forward and all seven gradients: with the hardware's sums and
  functions not one element differs, but for one kernel (below). The order of every product and sum, which are fused, where
  `tanhf` stands and where the instruction `tanh.approx.f32`, was read off single steps whose weights are the identity, so that gates and
  their gradients come out unmixed (`mpx/precision/lstm.py`). Without a GPU the two functions are tables, right to 1.3·10⁻⁷ and to the last
  place (`mpx/precision/squash.py`).
- **cuDNN has three LSTM algorithms.** The standard one; a persistent one for up to 128 units in FP16 and TF32, with an FP32 recurrence
  and `tanh.approx` (up to 8·10⁻⁶ off, also in FP32, where an LSTM of 64 units is less exact than one of 512), but `tanhf` for the last
  step's cell state in the backward pass, where the sum over gates is taken last; and the one that PyTorch asks for in FP16 where its
  rule says so (one layer, more than 128 units, units and inputs divisible by 128, batch by 8 and at most 128), which rounds neither the
  recurrent products nor the cell state. Of the last (64×128×512) we know the roundings, not the order of its sums.
- **A recurrence magnifies.** In FP16 one value in a thousand ends on the other side of a rounding, for its sum or a function's last bit;
  six steps and a gradient that sums hundreds of such values make that up to 40 % of the elements.
- **Infinities** are in the same places, but for an element in a million whose exact value lies within 0.02 % of the limit, where the
  order of the sum decides, and for **a fault of one kernel**: `sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16f16…` (forward, 16
  channels, cuDNN 9.19) answers 0 where a result is below −65,520. All 478 that should have been −∞ were 0, all 462 above were +∞. No loss
  scaling sees such an overflow. The emulation answers −∞.
- **What is not explained**: the FP16 gradients of PERSIST_STATIC's biases stay at 0.42; sums alone carry them 0.41.

**Trade-off and limits.** One GPU generation and library version. Emulation is about accuracy, overflow and underflow: bit equality with a
library's kernel holds where the kernel is the one that was studied.

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
    """Whether infinities and NaN were in the same places, up to which share of a value's elements they were, and what was not."""
    most, swapped = (max(float(row[key]) for row in rows) for key in ("non_finite", "swapped"))
    if zero := max(float(row["made_zero"]) for row in rows):
        return f"{most:.2%}; {zero:.2%} are 0 instead of −infinity" + (f", {swapped * 1e6:.0f} in a million otherwise" if swapped else "")
    if not swapped:
        return f"same ({most:.2%})" if most else "none"
    hardware, nearest = max(float(row["swapped_hardware"]) for row in rows), max(float(row["from_overflow"] or 0) for row in rows)
    return f"all of {most:.2%} but {swapped * 1e6:.0f} in a million, as the hardware {hardware * 1e6:.0f}; within {nearest:.0e} of 65,520"


def comparable(row: dict) -> bool:
    """Whether any element of the value was finite on both sides; without one its ratio is NaN, which is within no limit."""
    return math.isfinite(float(row["ratio"]))


def explained(row: dict) -> bool:
    """Whether it falls below the limit with the hardware's sums and functions, or other sums alone carry as far."""
    ratio, hardware, apart = (float(row[key]) for key in ("ratio", "ratio_hardware", "apart"))
    return hardware <= LIMIT or apart >= 0.9 * ratio


def report(rows: list[dict]) -> str:
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}, cuDNN {row['cudnn']}" for row in rows}))
    compared = [row for row in rows if comparable(row)]
    over = [row for row in compared if float(row["ratio"]) > LIMIT]
    rest = [row for row in over if not explained(row)]
    where = Counter(f"{row['operation']} {row['sizes']} {row['format']}" for row in rest)
    return CARD.format(
        setup=about, spreads=_spreads(rows), table=table(rows), limit=LIMIT, values=len(rows), within=len(compared) - len(over),
        incomparable=len(rows) - len(compared), over=len(over), explained=len(over) - len(rest), rest=len(rest),
        where=", ".join(f"{case} ({count})" for case, count in where.most_common()),
    )  # fmt: skip
