"""How should PyTorch's CPU threads wait for one another, alone and beside another program that uses as many?

$ python experiments/cpu_threads/run.py  # writes results.csv and README.md (about 15 minutes on two idle cores)
$ python experiments/cpu_threads/run.py --card     # README.md from the committed results.csv
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import markdown, measured, said

HERE = Path(__file__).parent
# GOMP_SPINCOUNT=300000 is GNU OpenMP's own default.
WAYS = ("GOMP_SPINCOUNT=300000", "GOMP_SPINCOUNT=10000", "GOMP_SPINCOUNT=3000", "GOMP_SPINCOUNT=1000",
"OMP_WAIT_POLICY=PASSIVE",
        "OMP_NUM_THREADS=1")  # fmt: skip
PRECISIONS, ROUNDS = ("fp32", "amp"), 2
COLUMNS = ("way", "precision", "beside", "round", "samples_per_s", "cores", "cpu")
OTHER = """
import torch
layer, images = torch.nn.Conv2d(16, 16, 3, padding=1), torch.randn(64, 16, 8, 8)
while True:
    layer(images).relu().sum().backward()
"""  # another program of as many threads, with the defaults of PyTorch
CARD = """# How should PyTorch's CPU threads wait for one another?

**Question.** PyTorch's OpenMP threads wait at full speed. Beside another program each waits for one that does not run. Which way to wait
costs least alone, and least beside another program? mpx sets `{chosen}` before PyTorch is imported, unless the
user sets that or OMP_WAIT_POLICY.

**Setup.** The main job (ResNet-20 on the digits, batches of 64; `amp` is emulated on a CPU) on {setup}.
Samples/s over 150 steps after the first 10, medians of {rounds} rounds. The other program is a convolution and its gradient in a loop.

**Command.** `python experiments/cpu_threads/run.py`

{table}

**What we learnt.** {learnt}

**Trade-off and limits.** The aim was to lose at most a tenth alone and at most half beside another program. No way meets it in both
precisions. A single thread comes nearest here, where layers are small; on another machine of 2 cores it lost 31 % alone in FP32, and
it gives up the second core for models with large layers. Speeds on this virtual machine scatter by up to a third from round to round. A short wait costs most where the threads have little to do between two meetings, as in emulated
formats; with many cores and large batches the ways differ less. OpenMP of LLVM and of Intel read other variables, and keep their defaults.
"""


def rate(way: str, precision: str, *, beside: bool) -> dict:
    """The speed of one run, as its record says."""
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))
    }
    other = subprocess.Popen([sys.executable, "-c", OTHER], env=plain) if beside else None
    try:
        with tempfile.TemporaryDirectory() as outputs:
            words = [
                f"precision={precision}",
                "speed=plain",
                "trainer.accelerator=cpu",
                "trainer.max_steps=160",
                f"output_dir={outputs}",
            ]
            words += ["trainer.progress=off", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
            name, _, value = way.partition("=")
            command = [sys.executable, "-m", "mpx.train", *words]
            subprocess.run(command, env=plain | {name: value}, check=True, stdout=subprocess.DEVNULL)
            record = json.loads(next(Path(outputs).rglob("result.json")).read_text())
    finally:
        if other is not None:
            other.kill()
    return {
        "samples_per_s": record["speed"]["train_samples_per_s"],
        **{key: record["environment"][key] for key in ("cores", "cpu")},
    }


def measure() -> Iterator[dict]:
    for turn in range(ROUNDS):
        for precision in PRECISIONS:
            for beside in (False, True):
                for way in WAYS:
                    case = {"way": way, "precision": precision, "beside": int(beside), "round": turn}
                    yield case | rate(way, precision, beside=beside)
                    print(case, flush=True)


def card(rows: list[dict]) -> str:
    from mpx.system.machine import SPINS

    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["way"], row["precision"], row["beside"]), []).append(
            float(row["samples_per_s"])
        )
    rates = {key: median(values) for key, values in found.items()}
    columns = [(precision, beside) for precision in PRECISIONS for beside in "01"]
    lines = [[f"`{way}`", *(f"{rates[way, *column]:,.0f}" for column in columns)] for way in WAYS]
    heads = [
        "",
        *(f"{precision}, {'alone' if beside == '0' else 'beside another'}" for precision, beside in columns),
    ]
    chosen, default = "=".join(SPINS), WAYS[0]
    alone, beside = (
        [rates[chosen, name, which] / rates[default, name, which] for name in PRECISIONS] for which in "01"
    )
    kept = [rates[chosen, precision, "1"] / rates[chosen, precision, "0"] for precision in PRECISIONS]
    learnt = (
        f"`{chosen}` trains {min(alone):.2f} to {max(alone):.2f} times as fast as the default alone, and "
        f"{min(beside):.1f} to "
        f"{max(beside):.1f} times as fast beside another program, where it keeps {min(kept):.0%} to "
        f"{max(kept):.0%} of its speed."
    )
    setup = said(rows, "{cores} cores of {cpu}, torch {torch}")
    return CARD.format(chosen=chosen, setup=setup, rounds=ROUNDS, table=markdown(heads, lines), learnt=learnt)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
