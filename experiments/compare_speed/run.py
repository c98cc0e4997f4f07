"""How long does a comparison of 1,000 runs take, and how much memory?

$ python experiments/compare_speed/run.py              # writes README.md (a minute)
$ python experiments/compare_speed/run.py --runs 40    # a quick look; writes nothing
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import scipy

HERE = Path(__file__).parent
ROUNDS, LAYERS, SEEDS = 3, 50, 25
MOST_S, MOST_GIB = 10.0, 1.0
PAIRS = (("resnet18", "cifar10"), ("bert_small", "sst2"), ("lstm", "sst2"), ("lstm", "wikitext2"))
SETTINGS = [(precision, sparsity) for sparsity in ("dense", "2of4") for precision in ("fp32", "tf32", "amp", "amp_bf16", "fp8")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        size = make_study(Path(folder) / "outputs" / "made", runs)
        seconds, gib = zip(*(measure(Path(folder)) for _ in range(ROUNDS)), strict=True)
    text = card(runs, size, max(seconds), max(gib))
    print(text)
    if runs == 1000:
        (HERE / "README.md").write_text(text)


def make_study(study: Path, runs: int) -> int:
    """Write so many records, as a run on a GPU writes them, and return their bytes. Accuracies and speeds are random."""
    random.seed(0)
    size = 0
    for number in range(runs):
        setting, seed = divmod(number, SEEDS)
        (model, data), (precision, sparsity) = PAIRS[setting // len(SETTINGS) % len(PAIRS)], SETTINGS[setting % len(SETTINGS)]
        folder = study / f"{model}-{data}-{precision}-{sparsity}" / f"seed{seed}"
        folder.mkdir(parents=True)
        text = json.dumps(record(model, data, precision, sparsity, seed), indent=2)
        (folder / "result.json").write_text(text)
        size += len(text)
    return size


def record(model: str, data: str, precision: str, sparsity: str, seed: int) -> dict:
    layers = [
        {
            "name": f"encoder.layers.{layer}.attention.output.weight", "type": "Linear", "shape": [512, 512], "pruned": sparsity == "2of4",
            "reason": None, "density": 0.5, "kept_magnitude": random.random(), "sparse_kernel": "cusparselt", "sparse_kernel_reason": None,
        }
        for layer in range(LAYERS)
    ]  # fmt: skip
    metric = {"test/perplexity": random.gauss(80, 0.5)} if data == "wikitext2" else {"test/accuracy": random.gauss(0.95, 0.003)}
    operation = {"kind": "matmul", "name": "addmm", "inputs": "fp16", "output": "fp16", "fmt": "fp16", "tensor_cores": True, "kernels": []}
    return {
        "schema_version": 1,
        "status": "completed",
        "setting": {"model": model, "data": data, "precision": precision, "sparsity": sparsity, "seed": seed},
        "config": {"data": {"batch_size": 256}, "trainer": {"devices": 1}, "others": {f"key{n}": n for n in range(80)}},
        "metrics": {"val/loss": 0.2, "test/loss": 0.2} | metric,
        "speed": {
            "train_samples_per_s": random.gauss(5000, 50), "step_ms_p50": 51.2, "step_ms_p95": 53.0, "measured_steps": 900,
            "warmup_steps": 10, "model_tflops_per_s": 50.0, "time_to_train_s": 170.0, "exclusive": True, "exclusive_reason": None,
        },
        "memory": {"peak_allocated_gib": 2.5, "peak_reserved_gib": 3.0, "peak_rss_gib": 4.0},
        "precision": {
            "mode": precision, "emulated": False, "observed": {"matmul": {"fp16": 400}}, "audit": {"operations": [operation] * 20},
            "loss_scale": {"initial": 65536.0, "final": 131072.0}, "optimizer_steps": 998, "skipped_steps": 2,
            "gradient_underflow_fraction": 0.001, "gradient_underflow_unscaled_fraction": 0.1,
        },
        "sparsity": {"pattern": sparsity, "density": 0.5, "kept_magnitude": 0.746, "layers": layers},
        "environment": {
            "torch": "2.15.0", "device": ["NVIDIA H200"], "started_at": "2026-11-21T14:00:00+00:00",
            "command": f"python -m mpx.train seed={seed} model={model} data={data} precision={precision} sparsity={sparsity}",
        },
    }  # fmt: skip


def measure(folder: Path) -> tuple[float, float]:
    """Wall time in s and peak resident memory in GiB of one whole `python -m mpx.compare`."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "mpx.compare", "study=made"], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, "mpx.compare failed; its message is above"
    return time.perf_counter() - began, usage.ru_maxrss / 2**20  # Linux counts KiB


def card(runs: int, size: int, seconds: float, gib: float) -> str:
    return f"""# How long does a comparison take?

**Question.** How long does `python -m mpx.compare` take on a study of {runs:,} runs, and how much memory? The bounds for 1,000 runs are \
{MOST_S:g} s and {MOST_GIB:g} GiB.

**Setup.** {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, scipy {scipy.__version__}; {runs:,} made-up \
records of {LAYERS} layers, {size / runs / 1024:.0f} KiB each, {SEEDS} seeds of each setting; whole processes, the worst of {ROUNDS}.

**Command.** `python experiments/compare_speed/run.py`

| runs | time, s | peak memory, GiB |
|---|---|---|
| {runs} | {seconds:.2f} | {gib:.3f} |
"""


if __name__ == "__main__":
    main()
