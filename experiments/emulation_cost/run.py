"""What emulation costs on a CPU: a training step in each emulated format against FP32, in turn, in one process.

$ python experiments/emulation_cost/run.py            # writes results.csv and README.md (about 2 minutes on two cores)
$ python experiments/emulation_cost/run.py --card     # README.md from the committed results.csv
"""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import markdown, measured, said

HERE = Path(__file__).parent
FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8")
ROUNDS = 12  # the first one is a warm-up
COLUMNS = ("model", "format", "round", "step_ms", "cpu", "threads")
CARD = """# What does emulation cost on a CPU?

**Question.** mpx emulates a format that a CPU lacks: it rounds operands and results, and computes in FP32. How much longer than an FP32
step does such a training step take?

**Setup.** {setup}. The formats take turns within each of {rounds} rounds; medians of the rounds' ratios,
without the first round. Forward, backward and optimizer step. FP8 takes every layer that a GPU's kernel can (`precision.layers=all`); by
default it takes none of these, and a step is that of BF16. Of the ResNets' layers it takes none: their classifier has 10 outputs.

**Command.** `python experiments/emulation_cost/run.py`

{table}

**What we learnt.** Rounding to FP16 and BF16 takes two conversions, for which the CPU has instructions. TF32 has none and takes five passes
over the numbers' bits. FP8 first searches for the largest value of each row. PyTorch's own conversion from FP8 was seven times slower than
the conversion to it; mpx shifts the bits into those of FP16 numbers instead (`mpx/precision/fp8.py`).

In the default job a step has some 350 operations of a few microseconds each. Looking at each of them in Python takes longer than the
roundings: all formats cost nearly the same there, about twice FP32.

**Trade-off.** Among large operations, FP8 costs most in BERT with its small batch, since the weights are scaled and rounded at every use.
Ratios differ by up to 0.1 from one call to the next. An earlier call, with two threads, gave 2.4 to 2.5 times for the default job; its
column of FP8 was that of BF16.
"""


def models():
    import torch
    from omegaconf import OmegaConf

    from mpx.models import build
    from mpx.spec import Spec
    from mpx.train import CONF

    def made(name, spec):
        return build(OmegaConf.load(CONF / "model" / f"{name}.yaml"), spec)

    def images(name, batch, shape):
        model, x = made(name, Spec("image", shape, 10)), torch.randn(batch, *shape)
        return model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # as in a run on a CPU

    bert = made("bert_small", Spec("text", (64,), 2, vocab_size=8000, pad_id=0))
    return {
        "ResNet-20, 64×1×8×8 (the default job)": images("resnet20", 64, (1, 8, 8)),
        "ResNet-18, 32×3×32×32": images("resnet18", 32, (3, 32, 32)),
        "BERT-small, 32×64 tokens": (bert, torch.randint(1, 8000, (32, 64))),
    }


def measure() -> list[dict]:
    import torch

    from mpx.measure.environment import environment
    from mpx.precision.emulate import Emulate
    from mpx.precision.fp8 import Layers

    every = Layers(every=True)  # by default FP8 takes no layer of these models, which would then compute in BF16
    about = {key: environment()[key] for key in ("cpu", "threads")}
    rows = []
    for name, (model, x) in models().items():
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        for turn in range(ROUNDS):
            for fmt in FORMATS:
                with nullcontext() if fmt == "fp32" else Emulate(fmt, linears=every):
                    started = time.perf_counter()
                    optimizer.zero_grad()
                    model(x).float().square().mean().backward()
                    optimizer.step()
                    ms = (time.perf_counter() - started) * 1e3
                rows.append({"model": name, "format": fmt, "round": turn, "step_ms": ms} | about)
            print(name, turn, {row["format"]: round(row["step_ms"]) for row in rows[-len(FORMATS) :]}, flush=True)
    return rows


def ratios(rows: list[dict], model: str) -> dict[str, float]:
    """Median over rounds of step ÷ FP32 step of the same round."""
    of = {(row["format"], int(row["round"])): float(row["step_ms"]) for row in rows if row["model"] == model}
    turns = sorted({turn for _, turn in of})[1:]
    return {fmt: median(of[fmt, turn] / of["fp32", turn] for turn in turns) for fmt in FORMATS}


def card(rows: list[dict]) -> str:
    lines = [
        [model, *(f"{ratio:.2f} ×" for ratio in ratios(rows, model).values())] for model in dict.fromkeys(row["model"] for row in rows)
    ]
    setup = said(rows, "{cpu}, {threads} threads, torch {torch}").replace(" 1 threads", " one thread")
    return CARD.format(setup=setup, rounds=ROUNDS, table=markdown(["model", *FORMATS], lines))


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
