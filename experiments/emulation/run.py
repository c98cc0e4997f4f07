"""Does the emulation round where the hardware rounds? Emulated against native products, convolutions and
LSTMs on a CUDA device.

$ python experiments/emulation/run.py            # writes results.csv (about a minute)
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import experiment

HERE = Path(__file__).parent
MODES = {"tf32": "tf32", "fp16": "amp", "bf16": "amp_bf16", "fp8": "fp8"}
CONVOLUTIONS = (
    (32, 16, 16, 16, 3, 1),
    (64, 64, 64, 16, 3, 1),
    (64, 64, 128, 16, 3, 2),
    (64, 64, 256, 16, 1, 1),
    (64, 256, 256, 8, 3, 1),
)
LSTMS = ((6, 32, 32, 64), (6, 64, 64, 128), (6, 32, 64, 256), (6, 64, 128, 512), (6, 256, 512, 512))
LINEARS = ((256, 256, 256), (64, 16, 64), (512, 1024, 512), (1024, 2048, 512))
CASES = [  # (operation, sizes, exponents are spread over ± so many powers of two)
    *(("matmul", (256, 256, 256), spread) for spread in (0, 4, 8, 12)),
    ("matmul", (1024, 1024, 1024), 0),
    ("matmul", (256, 512, 4096), 2),
    # the last overflows in FP16, as do LSTMs' gradients
    *(("conv", sizes, spread) for sizes in CONVOLUTIONS for spread in (0, 4, 7)),
    *(("lstm", sizes, spread) for sizes in LSTMS for spread in (0, 2, 10)),
    *(("linear", sizes, spread) for sizes in LINEARS for spread in (0, 4)),
]
COLUMNS = (
    "operation", "sizes", "spread", "format", "value", "ratio", "ratio_hardware", "hardware", "apart",
    "mismatches", "non_finite",
    "swapped", "swapped_hardware", "made_zero", "from_overflow", "error_native", "cudnn",
)  # fmt: skip


OVERFLOWS = 65520  # from here FP16 rounds to infinity


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
        leaves = {"x": wide(m, k, spread=spread), "w": wide(n, k, spread=spread), "b": wide(n, spread=spread)}
        return leaves, wide(m, n, spread=spread)
    if operation == "conv":
        batch, inputs, outputs, side, kernel, stride = sizes
        out = -(-side // stride)
        leaves = {"x": wide(batch, inputs, side, side, spread=spread)}
        leaves["w"] = wide(outputs, inputs, kernel, kernel, spread=spread)
        return leaves, wide(batch, outputs, out, out, spread=spread)
    steps, batch, inputs, hidden = sizes
    around = hidden**-0.5
    leaves = {
        "x": wide(steps, batch, inputs, spread=spread),
        "h": wide(1, batch, hidden, spread=0, scale=0.5),
    }
    leaves |= {"c": wide(1, batch, hidden, spread=0), "w": wide(4 * hidden, inputs, spread=0, scale=around)}
    leaves["u"] = wide(4 * hidden, hidden, spread=0, scale=around)
    leaves["bw"] = wide(4 * hidden, spread=0, scale=around)
    of_result = {"spread": spread, "scale": 16} if spread > 2 else {"spread": 0}
    gradient = wide(steps, batch, hidden, **of_result)
    return leaves | {"bu": wide(4 * hidden, spread=0, scale=around)}, gradient


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
    return torch._VF.lstm(leaves["x"], (leaves["h"], leaves["c"]), weights, True, 1, 0.0, True, False, False)[
        0
    ]


def run(operation, sizes, leaves, gradient, *, mode=None, emulate=False, hardware=None, dtype=None):
    """{value: tensor} of the result and every gradient. mode None: as the operands are, in `dtype`. hardware:
    of hardware.variants.
    """
    import warnings

    import torch

    from mpx.precision.emulate import Emulate
    from mpx.precision.fp8 import Layers
    from mpx.precision.modes import MODES as TABLE
    from mpx.precision.ops import Replacing
    from mpx.precision.recurrent import BFloat16RNN
    from mpx.precision.switches import float32_matmuls

    own = {name: value.detach().to(dtype or torch.float32).requires_grad_() for name, value in leaves.items()}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(float32_matmuls(TABLE[mode or "fp32"], emulate=emulate))
        if emulate:
            if hardware is not None:
                stack.enter_context(hardware.enter(TABLE[mode].emulates))
            stack.enter_context(Emulate(TABLE[mode].emulates, linears=Layers(every=True)))
        elif mode is not None and TABLE[mode].autocast is not None:
            stack.enter_context(torch.autocast("cuda", dtype=TABLE[mode].autocast))
            if mode == "fp8":
                stack.enter_context(Replacing("linear", Layers(every=True).multiply))
            if TABLE[mode].autocast == torch.bfloat16:
                stack.enter_context(BFloat16RNN())
        out = compute(operation, sizes, own)
        out.backward(gradient.to(out.dtype))
    return {"result": out.detach()} | {f"gradient of {name}": value.grad for name, value in own.items()}


def elsewhere(native, other):
    """Elements that are infinite or NaN in one of the two and not, or otherwise, in the other."""
    import torch

    return (torch.isnan(native) != torch.isnan(other)) | (torch.isinf(native) != torch.isinf(other))


def share(mask) -> str:
    return f"{mask.double().mean().item():.7f}"


def compare(operation, sizes, spread, fmt) -> list[dict]:
    import torch
    from hardware import variants

    torch.manual_seed(sum(sizes) + spread)
    leaves, gradient = operands(operation, sizes, spread)
    exact = run(operation, sizes, leaves, gradient, dtype=torch.float64)
    native = run(operation, sizes, leaves, gradient, mode=MODES[fmt])
    emulated = run(operation, sizes, leaves, gradient, mode=MODES[fmt], emulate=True)
    like = {
        v: run(operation, sizes, leaves, gradient, mode=MODES[fmt], emulate=True, hardware=v)
        for v in variants(operation, fmt)
    }
    rows = []
    for value in exact:
        n, e, x = (results[value].double() for results in (native, emulated, exact))
        finite = torch.isfinite(n) & torch.isfinite(e)
        swapped = elsewhere(n, e)  # non-finite on one side alone
        zero = swapped & (n == 0) & (e == -torch.inf)
        rest = swapped & ~zero
        from_overflow = f"{(x[rest].abs() / OVERFLOWS - 1).abs().max().item():.1e}" if rest.any() else ""
        error = (n - x)[finite].norm()

        def distance(a, b, finite=finite, error=error):
            return ((a.double() - b.double())[finite].norm() / error).item()

        nearest = min(like, key=lambda variant: distance(like[variant][value], n))
        rows.append({
            "operation": operation, "sizes": "×".join(map(str, sizes)), "spread": spread, "format": fmt,
            "value": value,
            "ratio": f"{distance(e, n):.4f}", "ratio_hardware": f"{distance(like[nearest][value], n):.4f}",
            "hardware": nearest.name,
            "apart": f"{max(distance(results[value], e) for variant, results in like.items() if variant.only_sums):.4f}",
            "mismatches": f"{(e != n)[finite].double().mean().item():.5f}",
            "non_finite": f"{(~torch.isfinite(n)).double().mean().item():.5f}",
            "swapped": share(rest),
            "swapped_hardware": min(share(elsewhere(n,
            results[value].double()) & ~zero) for results in like.values()),
            "made_zero": share(zero), "from_overflow": from_overflow,
            "error_native": f"{(error / x[finite].norm()).item():.3e}",
            "cudnn": torch.backends.cudnn.version(),
        })  # fmt: skip
    return rows


def measure() -> Iterator[dict]:
    for operation, sizes, spread in CASES:
        for fmt in MODES:
            if (fmt == "fp8") == (operation == "linear"):
                yield from compare(operation, sizes, spread, fmt)


if __name__ == "__main__":
    experiment(HERE, COLUMNS, lambda _: measure())
