"""How fast BERT-small is served on a CPU, in FP32 and INT8, by PyTorch and by ONNX Runtime. Writes cpu.csv.

$ python experiments/served/cpu.py  # on an idle machine; 2 minutes

32 sequences of 128 tokens without padding, random weights. PyTorch's own INT8 products on a CPU are not among
the candidates.
"""

import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, write

from mpx.data.spec import Spec
from mpx.deploy import onnx
from mpx.deploy.backends import Served, latency, relative_error
from mpx.measure.environment import environment
from mpx.models import build
from mpx.settings.front_door import CONF
from mpx.system.machine import builds_kernels

HERE, CPU, SIZE = Path(__file__).parent, torch.device("cpu"), 32
SPEC = Spec("text", (128,), 2, vocab_size=30522, pad_id=0, padded=False)


def with_onnx(model: torch.nn.Module, fmt: str, x: torch.Tensor) -> onnx.OnnxModel:
    content = onnx.exported(model, x[:2])
    return onnx.OnnxModel(
        onnx.quantised(content, lambda: iter([x]), static=False) if fmt == "int8" else content
    )


@torch.no_grad()
def main() -> None:
    Arguments().parse_args()
    torch.manual_seed(0)
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "model" / "bert_small.yaml")) | {"pool": "mean"}
    model = build(settings, SPEC).eval().requires_grad_(False)
    x = torch.randint(1, SPEC.vocab_size, (SIZE, 128))
    reference, where, rows = model(x), environment(), []
    common = {key: where[key] for key in ("cpu", "threads")}
    common["vnni"] = torch.cpu.get_capabilities().get("avx512_vnni", False)
    plans = [("fp32", "eager"), ("fp32", "compile"), ("fp32", "onnx"), ("int8", "onnx"), ("fp32", "eager")]
    for fmt, backend in plans:
        if backend != "compile" or builds_kernels("cpu"):
            call = with_onnx(model, fmt, x) if backend == "onnx" else Served(model, backend, CPU)
            row = {"format": fmt, "backend": backend, "batch": SIZE}
            row |= {"latency_ms_p50": latency(call, x)["latency_ms_p50"]}
            rows.append(row | {"relative_error": relative_error(call(x), reference)} | common)
            print(*rows[-1].values(), flush=True)
    write(HERE / "cpu.csv", [*rows[0]], rows)


if __name__ == "__main__":
    main()
