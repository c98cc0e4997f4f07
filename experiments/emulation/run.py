"""Does the emulation round where the hardware rounds? Emulated against native products, convolutions and LSTMs on a CUDA device.

$ python experiments/emulation/run.py            # writes results.csv and README.md (about a minute)
$ python experiments/emulation/run.py --card     # README.md from the committed results.csv
"""

import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import measured

HERE = Path(__file__).parent
LIMIT = 0.1
MODES = {"tf32": "tf32", "fp16": "amp", "bf16": "amp_bf16", "fp8": "fp8"}
CONVOLUTIONS = ((32, 16, 16, 16, 3, 1), (64, 64, 64, 16, 3, 1), (64, 64, 128, 16, 3, 2), (64, 64, 256, 16, 1, 1), (64, 256, 256, 8, 3, 1))
LSTMS = ((6, 32, 32, 64), (6, 64, 64, 128), (6, 32, 64, 256), (6, 64, 128, 512), (6, 256, 512, 512))
LINEARS = ((256, 256, 256), (64, 10, 64), (512, 1024, 512), (1024, 2048, 512))
CASES = [  # (operation, sizes, exponents are spread over ± so many powers of two)
    *(("matmul", (256, 256, 256), spread) for spread in (0, 4, 8, 12)),
    ("matmul", (1024, 1024, 1024), 0),
    ("matmul", (256, 512, 4096), 2),
    *(("conv", sizes, spread) for sizes in CONVOLUTIONS for spread in (0, 4)),
    *(("lstm", sizes, spread) for sizes in LSTMS for spread in (0, 2)),
    *(("linear", sizes, spread) for sizes in LINEARS for spread in (0, 4)),
]
COLUMNS = (
    "operation", "sizes", "spread", "format", "value", "ratio", "ratio_tensor_core_sums", "apart", "mismatches", "same_non_finite",
    "error_native", "device", "torch", "cudnn",
)  # fmt: skip


def wide(*shape, spread, scale=1.0):
    import torch

    powers = torch.randint(-spread, spread + 1, shape, device="cuda").float()
    return torch.randn(*shape, device="cuda") * torch.exp2(powers) * scale


def operands(operation, sizes, spread):
    """Leaf tensors of one case; the last is the gradient of the result."""
    if operation == "matmul":
        m, n, k = sizes
        return {"a": wide(m, k, spread=spread), "b": wide(k, n, spread=spread)}, wide(m, n, spread=spread)
    if operation == "linear":
        m, n, k = sizes
        return {"x": wide(m, k, spread=spread), "w": wide(n, k, spread=spread), "b": wide(n, spread=spread)}, wide(m, n, spread=spread)
    if operation == "conv":
        batch, inputs, outputs, side, kernel, stride = sizes
        out = -(-side // stride)
        leaves = {"x": wide(batch, inputs, side, side, spread=spread), "w": wide(outputs, inputs, kernel, kernel, spread=spread)}
        return leaves, wide(batch, outputs, out, out, spread=spread)
    steps, batch, inputs, hidden = sizes
    around = hidden**-0.5
    leaves = {"x": wide(steps, batch, inputs, spread=spread), "h": wide(1, batch, hidden, spread=0, scale=0.5)}
    leaves |= {"c": wide(1, batch, hidden, spread=0), "w": wide(4 * hidden, inputs, spread=0, scale=around)}
    leaves |= {"u": wide(4 * hidden, hidden, spread=0, scale=around), "bw": wide(4 * hidden, spread=0, scale=around)}
    return leaves | {"bu": wide(4 * hidden, spread=0, scale=around)}, wide(steps, batch, hidden, spread=0)


def compute(operation, sizes, leaves):
    import torch
    from torch.nn.functional import conv2d, linear

    if operation == "matmul":
        return leaves["a"] @ leaves["b"]
    if operation == "linear":
        return linear(leaves["x"], leaves["w"], leaves["b"])
    if operation == "conv":
        x, w = (leaves[name].contiguous(memory_format=torch.channels_last) for name in ("x", "w"))
        return conv2d(x, w, padding=sizes[4] // 2, stride=sizes[5])
    weights = [leaves[name] for name in ("w", "u", "bw", "bu")]
    return torch._VF.lstm(leaves["x"], (leaves["h"], leaves["c"]), weights, True, 1, 0.0, True, False, False)[0]


def tensor_core_sums(fmt):
    """Products of operands that the format holds exactly run on Tensor Cores, in FP16 or BF16 with an FP32 result, else in TF32."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from mpx.precision.modes import MODES as TABLE
    from mpx.precision.rounding import ROUND
    from mpx.precision.switches import float32_matmuls, tf32_products

    narrow, aten = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(fmt), torch.ops.aten
    held = ROUND[fmt if narrow else "tf32"]

    class Sums(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func not in (aten.mm.default, aten.bmm.default) or args[0].dtype != torch.float32:
                return func(*args, **(kwargs or {}))
            exact = all(torch.equal(held(operand), operand) for operand in args)
            if exact and narrow:
                product = torch.mm if func is aten.mm.default else torch.bmm
                return product(*(operand.to(narrow) for operand in args), out_dtype=torch.float32)
            with tf32_products() if exact else float32_matmuls(TABLE["fp32"], emulate=True):
                return func(*args)

    return Sums()


def run(operation, sizes, leaves, gradient, *, mode=None, emulate=False, sums="ieee", dtype=None):
    """{value: tensor} of the result and every gradient. mode None: as the operands are, in `dtype`."""
    import warnings

    import torch

    from mpx.precision.emulate import Emulate
    from mpx.precision.fp8 import Float8Linear
    from mpx.precision.modes import MODES as TABLE
    from mpx.precision.rnn import BFloat16RNN
    from mpx.precision.switches import float32_matmuls, tf32_products

    own = {name: value.detach().to(dtype or torch.float32).requires_grad_() for name, value in leaves.items()}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(float32_matmuls(TABLE[mode or "fp32"], emulate=emulate))
        if emulate:
            if sums == "tensor cores":
                stack.enter_context(tf32_products())  # convolutions
                stack.enter_context(tensor_core_sums(TABLE[mode].emulates))
            stack.enter_context(Emulate(TABLE[mode].emulates))
        elif mode is not None and TABLE[mode].autocast is not None:
            stack.enter_context(torch.autocast("cuda", dtype=TABLE[mode].autocast))
            if mode == "fp8":
                stack.enter_context(Float8Linear(native=True))
            if TABLE[mode].autocast == torch.bfloat16:
                stack.enter_context(BFloat16RNN())
        out = compute(operation, sizes, own)
        out.backward(gradient.to(out.dtype))
    return {"result": out.detach()} | {f"gradient of {name}": value.grad for name, value in own.items()}


def compare(operation, sizes, spread, fmt) -> list[dict]:
    import torch

    torch.manual_seed(sum(sizes) + spread)
    leaves, gradient = operands(operation, sizes, spread)
    exact = run(operation, sizes, leaves, gradient, dtype=torch.float64)
    native = run(operation, sizes, leaves, gradient, mode=MODES[fmt])
    emulated = run(operation, sizes, leaves, gradient, mode=MODES[fmt], emulate=True)
    with_cores = run(operation, sizes, leaves, gradient, mode=MODES[fmt], emulate=True, sums="tensor cores")
    rows = []
    for value in exact:
        n, e, c, x = (results[value].double() for results in (native, emulated, with_cores, exact))
        finite = torch.isfinite(n) & torch.isfinite(e) & torch.isfinite(c)
        same = bool((torch.isnan(n) == torch.isnan(e)).all() and (torch.isinf(n) == torch.isinf(e)).all())
        error = (n - x)[finite].norm()
        rows.append({
            "operation": operation, "sizes": "×".join(map(str, sizes)), "spread": spread, "format": fmt, "value": value,
            "ratio": f"{((e - n)[finite].norm() / error).item():.4f}",
            "ratio_tensor_core_sums": f"{((c - n)[finite].norm() / error).item():.4f}",
            "apart": f"{((e - c)[finite].norm() / error).item():.4f}",
            "mismatches": f"{(e != n)[finite].double().mean().item():.5f}", "same_non_finite": same,
            "error_native": f"{(error / x[finite].norm()).item():.3e}",
            "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
        })  # fmt: skip
    return rows


def measure() -> list[dict]:
    rows = []
    for operation, sizes, spread in CASES:
        for fmt in MODES:
            if (fmt == "fp8") == (operation == "linear"):
                rows += compare(operation, sizes, spread, fmt)
    return rows


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
        "| operation | sizes | format | | ratio | with Tensor Core sums | apart | elements that differ | inf and NaN |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (operation, sizes, fmt, kind), found in groups.items():
        ratio, cores, apart = (max(float(row[key]) for row in found) for key in ("ratio", "ratio_tensor_core_sums", "apart"))
        share = f"{max(float(row['mismatches']) for row in found):.2%}" if fmt != "tf32" else "–"
        same = "same" if all(str(row["same_non_finite"]) == "True" for row in found) else "**differ**"
        mark = f"{ratio:.3f}" if ratio <= LIMIT else f"**{ratio:.3f}**"
        lines.append(f"| {operation} | {sizes} | {fmt} | {kind} | {mark} | {cores:.3f} | {apart:.3f} | {share} | {same} |")
    return "\n".join(lines)


def explained(row: dict) -> bool:
    """Whether sums account for the distance: it falls below the limit with the hardware's, or other sums alone carry as far."""
    ratio, cores, apart = (float(row[key]) for key in ("ratio", "ratio_tensor_core_sums", "apart"))
    return cores <= LIMIT or apart >= 0.9 * ratio


def main() -> None:
    rows = measured(HERE, COLUMNS, measure)
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}, cuDNN {row['cudnn']}" for row in rows}))
    over = [row for row in rows if float(row["ratio"]) > LIMIT]
    rest = [row for row in over if not explained(row)]
    where = Counter(f"{row['operation']} {row['sizes']} {row['format']}" for row in rest)
    (HERE / "README.md").write_text(
        CARD.format(
            setup=about, table=table(rows), within=len(rows) - len(over), values=len(rows), limit=LIMIT, over=len(over),
            explained=len(over) - len(rest), rest=len(rest), where=", ".join(f"{case} ({count})" for case, count in where.most_common()),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
