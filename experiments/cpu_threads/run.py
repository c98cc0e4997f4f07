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
from collecting import fill, markdown, measured, said

HERE = Path(__file__).parent
# GOMP_SPINCOUNT=300000 is GNU OpenMP's own default.
WAYS = ("GOMP_SPINCOUNT=300000", "GOMP_SPINCOUNT=10000", "GOMP_SPINCOUNT=3000", "GOMP_SPINCOUNT=1000",
"OMP_WAIT_POLICY=PASSIVE",
        "OMP_NUM_THREADS=1")  # fmt: skip
PRECISIONS, ROUNDS = ("fp32", "amp"), 2
BESIDE = {"0": "alone", "1": "beside another"}  # values of the column
COLUMNS = ("way", "precision", "beside", "round", "samples_per_s", "cores", "cpu")
OTHER = """
import torch
layer, images = torch.nn.Conv2d(16, 16, 3, padding=1), torch.randn(64, 16, 8, 8)
while True:
    layer(images).relu().sum().backward()
"""  # another program of as many threads, with the defaults of PyTorch


def rate(way: str, precision: str, *, beside: bool) -> dict:
    """The speed of one run, as its record says."""
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))
    }
    other = subprocess.Popen([sys.executable, "-c", OTHER], env=plain) if beside else None
    try:
        with tempfile.TemporaryDirectory() as outputs:
            words = (
                f"precision={precision} speed=plain trainer.accelerator=cpu trainer.max_steps=160 "
                "trainer.progress=off trainer.limit_val_batches=1 trainer.limit_test_batches=1"
            )
            name, _, value = way.partition("=")
            command = [sys.executable, "-m", "mpx.train", *words.split(), f"output_dir={outputs}"]
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


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The table of the card."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        rates.setdefault((row["way"], row["precision"], row["beside"]), []).append(
            float(row["samples_per_s"])
        )
    columns = {(name, beside): words for name in PRECISIONS for beside, words in BESIDE.items()}
    lines = [[f"`{way}`", *(f"{median(rates[way, *column]):,.0f}" for column in columns)] for way in WAYS]
    heads = ["", *(f"{name}, {words}" for (name, _), words in columns.items())]
    return {"table": f"{said(rows, '{cores} cores of {cpu}, torch {torch}')}.\n\n{markdown(heads, lines)}"}


if __name__ == "__main__":
    fill(HERE / "README.md", card(measured(HERE, COLUMNS, measure)))
