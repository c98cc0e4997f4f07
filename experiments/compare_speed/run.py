"""How long does a comparison of 1,000 runs take, and how much memory?

$ python experiments/compare_speed/run.py                           # writes results.csv and README.md (five minutes)
$ python experiments/compare_speed/run.py --runs 40 --groups 3    # a quick look; writes nothing
"""

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib
import scipy

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, write

from mpx.measure.environment import environment
from mpx.record.files import CURVES, HEADER, TAGS

HERE = Path(__file__).parent
COLUMNS = ("runs", "groups", "time_s", "cpu_s", "peak_gib")
ROUNDS, LAYERS = 3, 50
GROUPS = (4, 12, 24)  # numbers of groups, each one model and data set
STEPS, EVERY = 20_000, 50  # a run's training steps, and the interval of its logging
BOUND_GROUPS, BOUND_S, BOUND_GIB = 12, 30.0, 1.0  # bounds for 1,000 runs on 2 cores
MODELS, DATA = ("resnet18", "resnet20", "vit", "bert_small", "lstm", "mlp"), ("cifar10", "sst2", "wikitext2", "fashion_mnist")
PAIRS = [(model, data) for model in MODELS for data in DATA]
SETTINGS = [(precision, sparsity) for sparsity in ("dense", "2of4") for precision in ("fp32", "tf32", "amp", "amp_bf16", "fp8")]


def main() -> None:
    parser = Arguments()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    runs, rounds = asked.runs, []
    for groups in asked.groups:
        with tempfile.TemporaryDirectory() as folder:
            sizes = make_study(Path(folder) / "outputs" / "made", runs, groups)
            rounds += [(groups, *measure(Path(folder))) for _ in range(asked.rounds)]
    text = card(runs, *sizes, rounds)
    print(text)
    if (runs, asked.groups, asked.rounds) == (1000, GROUPS, ROUNDS):
        write(HERE / "results.csv", COLUMNS, [{"runs": runs} | dict(zip(COLUMNS[1:], row, strict=True)) for row in rounds])
        (HERE / "README.md").write_text(text)


def make_study(study: Path, runs: int, groups: int) -> tuple[int, int]:
    """Write records and curves like those of runs on a GPU, with random figures. Returns the bytes of the records and of the curves."""
    random.seed(0)
    logged = curves()
    size = 0
    for number in range(runs):
        setting, pair = divmod(number, groups)
        seed, setting = divmod(setting, len(SETTINGS))
        (model, data), (precision, sparsity) = PAIRS[pair], SETTINGS[setting]
        folder = study / f"{model}-{data}-{precision}-{sparsity}" / f"seed{seed}"
        folder.mkdir(parents=True)
        text = json.dumps(record(model, data, precision, sparsity, seed), indent=2)
        (folder / "result.json").write_text(text)
        (folder / CURVES).write_text(logged)
        size += len(text)
    return size, len(logged) * runs


def curves() -> str:
    """One run's curves.csv, the same for all runs, since only the number of rows matters."""
    return HEADER + "".join(f"{tag},{step},{random.random()}\n" for step in range(0, STEPS, EVERY) for tag in TAGS)


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


def measure(folder: Path) -> tuple[float, float, float]:
    """Wall time and CPU time in s and peak memory in GiB of `python -m mpx.compare` with its report."""
    began, before = time.perf_counter(), os.times()
    process = subprocess.Popen([sys.executable, "-m", "mpx.compare", "study=made"], cwd=folder, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.02)
    assert process.returncode == 0, "mpx.compare failed; its message is above"
    assert (folder / "outputs" / "made" / "report.html").is_file()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu, peak / 2**30


def resident(pid: int) -> int:
    """Bytes of RAM of a process, on Linux; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def additions_s() -> float:
    """Seconds for ten million additions, which measure the speed of a shared host at this time."""
    began, total = time.perf_counter(), 0
    for number in range(10_000_000):
        total += number
    return time.perf_counter() - began


def card(runs: int, records: int, logged: int, rounds: list[tuple[int, float, float, float]]) -> str:
    rows = "\n".join(f"| {runs} | {groups} | {wall:.2f} | {cpu:.2f} | {gib:.3f} |" for groups, wall, cpu, gib in rounds)
    return f"""# How long does a comparison take?

**Question.** How long does `python -m mpx.compare` with its report take on a study of {runs:,} runs, and how much memory? The bounds for \
1,000 runs of {BOUND_GROUPS} groups on 2 cores are {BOUND_S:g} s and {BOUND_GIB:g} GiB.

**Setup.** {environment()["cpu"]}, {os.cpu_count()} cores, Python {platform.python_version()}, scipy {scipy.__version__}, \
matplotlib {matplotlib.__version__}; load average {os.getloadavg()[0]:.1f}. The comparison itself contributes at most 1 to the load; above \
that it waited for other programs. Ten million additions in Python took {additions_s():.1f} s, a measure of the host's speed at that \
time. {runs:,} generated runs of {len(SETTINGS)} settings, with seeds divided among the groups; \
a group is one model and data set. Each run has a record of {LAYERS} layers \
({records / runs / 1024:.0f} KiB) and {len(TAGS)} curves of {STEPS // EVERY} points ({logged / runs / 1024:.0f} KiB). \
{ROUNDS} repetitions.

**Command.** `python experiments/compare_speed/run.py`

| runs | groups | time, s | CPU time, s | peak memory, GiB |
|---|---|---|---|---|
{rows}
"""


if __name__ == "__main__":
    main()
