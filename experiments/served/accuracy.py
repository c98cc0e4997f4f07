"""Are 2:4 and INT8 models as accurate as dense FP16 ones, as served? Trains, serves and writes
OUT/accuracy.csv; accuracy_card.py shows it.

$ python experiments/served/accuracy.py --data-root DIR --out /tmp/served --jobs 5 --budget-s 500  # again, until nothing is left to do
$ python experiments/served/accuracy.py --out /tmp/served --phase card  # accuracy.csv and README.md here
$ python experiments/served/accuracy.py --data-root DIR --tasks resnet18_fashion_mnist --seeds 0 1 --epochs-scale 0.1 \
      --train trainer.limit_train_batches=30 trainer.limit_test_batches=1   # a trial, on a CPU too

DIR holds the files of all data sets (docs/own-model.md). What is done is not repeated: a completed run, a row
of accuracy.csv. Trainings run side by side, and so do the commands that serve them, uncompiled, since only
accuracy counts. `speed` then serves the first seed of each task again, compiled and alone on the device. A
machine that has only accuracy.csv goes on with what is not in it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from itertools import product
from pathlib import Path
from threading import Lock

from accuracy_card import update_card

sys.path.append(str(Path(__file__).parents[1]))
from collecting import ORIGIN, Arguments, origin_of, read

from mpx.settings.reachable import no_gpu
from mpx.system.csv_file import to_text
from mpx.system.whole_file import write_whole

# the tuned tasks then: 40, 30, 4, 8
EPOCHS = {"resnet18_cifar10": 24, "resnet18_fashion_mnist": 20, "bert_small_sst2": 4, "lstm_sst2": 6}
IMAGES = ("resnet18_cifar10", "resnet18_fashion_mnist")
RECIPES = {
    "dense": [],
    "asp": ["sparsity=2of4"],
    "sr_ste": ["sparsity=2of4", "sparsity.recipe=sr_ste", "sparsity.start=0"],
}
TRIED = dict.fromkeys((*IMAGES, "lstm_sst2"), tuple(RECIPES))  # elsewhere asp is enough
LIMIT_S = 300  # of one command
BATCH = 256
NO_LAYER = "no layer of this model"  # has such kernels, says mpx.deploy


@dataclass(frozen=True)
class Run:
    task: str
    recipe: str
    seed: int


@dataclass(frozen=True)
class Variant:
    """How a run is served. weights: as asked for; where no layer has such kernels, FP16 and BF16 have dense
    ones.
    """

    format: str
    weights: str


KEY = tuple(field.name for field in (*fields(Run), *fields(Variant)))


def variants(recipe: str, gpu: bool) -> list[Variant]:
    full, kernels = ("fp16", "2of4") if gpu else ("fp32", "dense")  # a CPU has neither FP16 nor 2:4 products
    if recipe == "dense":
        return [Variant(full, "dense")]
    return [Variant(full, kernels), Variant("int8", kernels)]


class Study:
    """options: of the command line. The folder OUT holds runs/, logs/ and accuracy.csv."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.gpu = options, not no_gpu()
        self.table, self.lock, self.failures = options.out / "accuracy.csv", Lock(), 0
        self.end = time.monotonic() + options.budget_s
        self.rows = read(self.table) if self.table.exists() else []
        threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
        self.shared = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), threads
        )

    def runs(self) -> list[Run]:
        """Seeds first: a study that is cut short has the same number of seeds everywhere."""
        tried = (
            (task, recipe) for task in self.options.tasks for recipe in TRIED.get(task, ("dense", "asp"))
        )
        return [Run(task, recipe, seed) for seed, (task, recipe) in product(self.options.seeds, tried)]

    def train(self) -> None:
        self.side_by_side(
            self._train, [run for run in self.runs() if self.left(run) and self.folder(run) is None]
        )

    def serve(self) -> None:
        runs = [run for run in self.runs() if self.left(run) and self.folder(run) is not None]
        self.side_by_side(lambda run: self._serve(run, self.left(run), alone=False), runs)

    def speed(self) -> None:
        for run in self.runs():
            if run.seed == self.options.seeds[0] and self.folder(run) is not None:
                self._serve(run, self.left(run, timed=True), alone=True)

    def left(self, run: Run, timed: bool = False) -> list[Variant]:
        """What of this run is not in the table yet. A machine that has lost the run needs it only for these.
        timed: with its speed.
        """
        rows = [row for row in self.rows if row["samples_per_s"] or row["reason"] or not timed]
        there = {tuple(row[name] for name in KEY) for row in rows}
        wanted = variants(run.recipe, self.gpu)
        return [
            variant
            for variant in wanted
            if (*map(str, asdict(run).values()), *asdict(variant).values()) not in there
        ]

    def side_by_side(self, work: Callable[[Run], None], runs: Iterable[Run]) -> None:
        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(work, runs))

    def folder(self, run: Run) -> Path | None:
        """Of the completed run."""
        found = [path.parent for path in self._study(run).glob(f"*/seed{run.seed}/result.json")]
        done = [
            path for path in found if json.loads((path / "result.json").read_text())["status"] == "completed"
        ]
        if len(done) > 1:
            sys.exit(
                f"error: {self._study(run)} has runs of several settings. Give another --out for "
                "another --epochs-scale or --train."
            )
        return done[0] if done else None

    def _study(self, run: Run) -> Path:
        return self.options.out / "runs" / f"{run.task}-{run.recipe}"

    def _train(self, run: Run) -> None:
        epochs = max(1, round(EPOCHS[run.task] * self.options.epochs_scale))
        study = self._study(run)
        words = [
            f"task={run.task}",
            *RECIPES[run.recipe],
            f"seed={run.seed}",
            "precision=amp",
            f"trainer.max_epochs={epochs}",
        ]
        words += [
            f"study={study.name}",
            f'output_dir="{study.parent}"',
            f'data.root="{self.options.data_root}"',
            "if_exists=overwrite",
        ]
        words += ["data.tta=none"] if run.task in IMAGES else []  # a served model sees one view of each image
        self.call(f"{study.name}-seed{run.seed}", "mpx.train", [*words, *self.options.train])
        if (folder := self.folder(run)) is not None:
            self.add(asdict(run) | trained(json.loads((folder / "result.json").read_text())))

    def _serve(self, run: Run, wanted: list[Variant], *, alone: bool) -> None:
        if not wanted:
            return
        folder = self.folder(run)
        formats, backend = (
            ",".join(variant.format for variant in wanted),
            ("compile" if alone else "graph") if self.gpu else "auto",
        )
        name = f"{run.task}-{run.recipe}-seed{run.seed}-{formats}"
        words = [f'run="{folder}"', f"batch=[{BATCH}]", f"backend={backend}"]
        began = time.time()
        reasons = self.call(
            name, "mpx.deploy", [*words, f"format=[{formats}]", f"weights={wanted[0].weights}"], alone=alone
        )
        if reasons is None:
            return
        for variant in wanted:
            reason = next(
                (
                    line
                    for line in reasons
                    if NO_LAYER in line and (len(wanted) == 1 or f"format={variant.format}" in line)
                ),
                None,
            )
            if reason is not None and variant.format != "int8":  # then it is served by dense kernels
                self.call(
                    f"{name}-dense",
                    "mpx.deploy",
                    [*words, f"format={variant.format}", "weights=dense"],
                    alone=alone,
                )
            row = written_since(began, folder, variant.format)
            if row is not None or reason is not None:
                self.add(
                    asdict(run)
                    | asdict(variant)
                    | (
                        {"reason": reason[reason.index(NO_LAYER) :]}
                        if row is None
                        else served(folder, row, alone)
                    )
                )

    def call(self, name: str, module: str, words: list[str], *, alone: bool = False) -> list[str] | None:
        """Start a command, unless the time is over: then None. Returns the lines of its errors."""
        if time.monotonic() > self.end:
            return None
        begun, log = time.monotonic(), self.options.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w") as file:
            try:
                code = subprocess.run(
                    [sys.executable, "-m", module, *words], stdout=file, stderr=subprocess.STDOUT,
                    timeout=LIMIT_S,
                    env=os.environ if alone else self.shared,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = f"none after {LIMIT_S} s"
        errors = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
        print(
            f"{name}: exit code {code} in {time.monotonic() - begun:.0f} s {' '.join(errors)}".rstrip(),
            flush=True,
        )
        if code != 0 and not all(NO_LAYER in line for line in errors):
            self.failures += 1
        return errors

    def add(self, row: dict) -> None:
        """In place of an earlier row of the same run, served in the same way."""
        texts = {name: "" if row.get(name) is None else str(row[name]) for name in COLUMNS}
        with self.lock:
            self.rows = [old for old in self.rows if any(old[name] != texts[name] for name in KEY)] + [texts]
            write_whole(self.table, to_text(COLUMNS, self.rows))


COLUMNS = (
    *KEY, "validation_accuracy", "accuracy", "trained_accuracy",
    "samples_per_s", "latency_ms_p50", "batch", "backend", "sparse_layers", "quantised_layers", "exclusive",
    "epochs", "reason", *ORIGIN,
)  # fmt: skip


def written_since(began: float, folder: Path, fmt: str) -> dict | None:
    """The row of deploy.json in this format, if this study's last command wrote it."""
    path = folder / "deploy.json"
    if not path.exists() or path.stat().st_mtime < began:
        return None
    rows = [row for row in json.loads(path.read_text())["rows"] if row["format"] == fmt]
    started = [datetime.fromisoformat(row["environment"]["started_at"]).timestamp() for row in rows]
    return next((row for row, at in zip(rows, started, strict=True) if at >= int(began)), None)


def served(folder: Path, row: dict, alone: bool) -> dict:
    """Columns of a row of deploy.json. Without `alone` its speed is not that of the model."""
    speed = {
        name: row["speed"][-1][source]
        for name, source in (("samples_per_s", "serve_samples_per_s"), ("latency_ms_p50",) * 2)
    }
    return (
        (speed | {"exclusive": row["exclusive"]} if alone else {})
        | trained(json.loads((folder / "result.json").read_text()))
        | {
            "accuracy": row["metrics"]["test/accuracy"],
            "batch": row["speed"][-1]["batch"],
            "backend": row["backend"],
            "sparse_layers": len(row["sparse_layers"]),
            "quantised_layers": len(row["quantised_layers"]),
        }
        | origin_of(row["environment"])
    )


def trained(record: dict) -> dict:
    """Columns of result.json, in a row of its own with no format, and in those of the served model."""
    metrics = {"validation_accuracy": "val/accuracy", "trained_accuracy": "test/accuracy"}
    found = {column: record["metrics"][name] for column, name in metrics.items()}
    return found | {"epochs": record["config"]["trainer"]["max_epochs"]} | origin_of(record["environment"])


def options() -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("--tasks", nargs="+", choices=EPOCHS, default=list(EPOCHS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=4, help="commands side by side")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("outputs/served"))
    parser.add_argument("--epochs-scale", type=float, default=1.0)
    parser.add_argument(
        "--train", nargs="+", default=[], metavar="KEY=VALUE", help="more overrides of every training"
    )
    parser.add_argument(
        "--phase", nargs="+", choices=("train", "serve", "speed", "card"), default=["train", "serve", "speed"]
    )
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="start no command later than this"
    )
    found = parser.parse_args()
    found.out, found.data_root = found.out.resolve(), found.data_root.resolve()
    return found


def main() -> int:
    given = options()
    study = Study(given)
    if "train" in given.phase:
        study.train()
    if "serve" in given.phase:
        study.serve()
    if "speed" in given.phase:
        study.speed()
    if "card" in given.phase:
        update_card(study.table)
    return 1 if study.failures else 0


if __name__ == "__main__":
    sys.exit(main())
