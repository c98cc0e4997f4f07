"""Small LSTMs as cuDNN computed them, for tests/precision/test_lstm.py.

$ python experiments/emulation/golden.py FILE    # on a CUDA device
"""

import json
import sys
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from collecting import file_to_write

SIZES = {"bf16": (4, 3, 8, 16), "fp16": (3, 8, 16, 200), "tf32": (4, 3, 8, 16)}  # steps, batch, inputs, hidden


def main() -> None:
    file = file_to_write()
    from mpx.precision.modes import MODES
    from mpx.precision.switches import float32_matmuls

    warnings.simplefilter("ignore")
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    for fmt, sizes in SIZES.items():
        steps, batch, inputs, hidden = sizes
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(inputs, hidden)
        x, gradient = torch.randn(steps, batch, inputs), torch.randn(steps, batch, hidden)
        h, c = torch.randn(1, batch, hidden) / 2, torch.randn(1, batch, hidden)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}[fmt]
        with float32_matmuls(MODES["tf32" if fmt == "tf32" else "fp32"], emulate=False):
            lstm = lstm.to("cuda", dtype)
            leaves = [value.to("cuda", dtype).requires_grad_() for value in (x, h, c)]
            out, _ = lstm(leaves[0], tuple(leaves[1:]))
            out.backward(gradient.to("cuda", dtype))
        values = {"out": out, "x": leaves[0].grad, "h": leaves[1].grad, "c": leaves[2].grad}
        values |= {name: parameter.grad for name, parameter in lstm.named_parameters()}
        found[fmt] = {"sizes": sizes} | {name: _few(value) for name, value in values.items()}
    file.write_text(json.dumps(found))


def _few(value: torch.Tensor) -> list[float]:
    """Every 7th number of a large tensor is enough."""
    flat = value.detach().float().flatten().cpu()
    return (flat if len(flat) <= 600 else flat[:: max(7, len(flat) // 400)]).tolist()


if __name__ == "__main__":
    main()
