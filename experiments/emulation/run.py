"""Does the emulation round where the hardware rounds? Emulated against native products, convolutions and LSTMs on a CUDA device.

$ python experiments/emulation/run.py            # writes results.csv and README.md (about a minute)
$ python experiments/emulation/run.py --card     # README.md from the committed results.csv
"""

import csv
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

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
    "operation", "sizes", "spread", "format", "value", "ratio", "ratio_tensor_core_sums", "mismatches", "same_non_finite", "error_native",
    "device", "torch", "cudnn",
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


def run(operation, sizes, leaves, gradient, *, mode=None, emulate=False, sums="ieee", dtype=None):
    """{value: tensor} of the result and every gradient. mode None: as the operands are, in `dtype`."""
    import warnings

    import torch

    from mpx.precision.emulate import Emulate
    from mpx.precision.fp8 import Float8Linear
    from mpx.precision.modes import MODES as TABLE
    from mpx.precision.modes import float32_matmuls, tf32_products
    from mpx.precision.rnn import BFloat16RNN

    own = {name: value.detach().to(dtype or torch.float32).requires_grad_() for name, value in leaves.items()}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(float32_matmuls(TABLE[mode or "fp32"], emulate=emulate))
        if emulate:
            if sums == "tensor cores":
                stack.enter_context(tf32_products())
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


CARD = (HERE / "card.md").read_text() if (HERE / "card.md").exists() else ""


def table(rows: list[dict]) -> str:
    groups = defaultdict(list)
    for row in rows:
        kind = "forward" if row["value"] == "result" else "gradients"
        groups[row["operation"], row["sizes"], row["format"], kind].append(row)
    lines = [
        "| operation | sizes | format | | ratio | with Tensor Core sums | elements that differ | inf and NaN |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (operation, sizes, fmt, kind), found in groups.items():
        ratio, cores, share = (max(float(row[key]) for row in found) for key in ("ratio", "ratio_tensor_core_sums", "mismatches"))
        same = "same" if all(str(row["same_non_finite"]) == "True" for row in found) else "**differ**"
        mark = f"{ratio:.3f}" if ratio <= LIMIT else f"**{ratio:.3f}**"
        lines.append(f"| {operation} | {sizes} | {fmt} | {kind} | {mark} | {cores:.3f} | {share:.2%} | {same} |")
    return "\n".join(lines)


def main() -> None:
    if "--card" not in sys.argv:
        rows = measure()
        with open(HERE / "results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    with open(HERE / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}, cuDNN {row['cudnn']}" for row in rows}))
    within = sum(float(row["ratio"]) <= LIMIT for row in rows)
    (HERE / "README.md").write_text(CARD.format(setup=about, table=table(rows), within=within, values=len(rows), limit=LIMIT))


if __name__ == "__main__":
    main()
