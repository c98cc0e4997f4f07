"""Does a Lightning project train through mpx as fast as by its own Trainer with the same precision flag, and what does speed=auto add?

$ python experiments/project_speed/run.py $OUT      # 5 minutes on two GPUs; writes speed.csv and table.md to the folder
$ python experiments/project_speed/run.py $OUT --rounds 9 --project unet lm --precision amp
$ python experiments/project_speed/run.py DIR --steps 20 --project unet --small   # a trial on any machine

Ways, in turn, each in a process of its own that stays: `trainer`, a pl.Trainer(precision=…) with mpx.Throughput alone as stopwatch;
`plain`, mpx.run with speed=plain trainer.channels_last=false, which differs only in what mpx brings; `auto`, mpx.run. A run is one epoch:
mpx writes the checkpoint of an epoch beside the next one's steps, a pl.Trainer before them, where no stopwatch counts it.
The bound is plain ÷ trainer of at least 0.98, by the median over the rounds of the ratio of one round's runs.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from multiprocessing import get_context, set_start_method
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from threading import Lock
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from collecting import Arguments, each_gpu, markdown, read, table  # noqa: E402

PROJECTS = {  # name: (module, kind of data, batch size, steps, the same at a size for any machine)
    "unet": ("UNet", "images", 64, 150, ["width=4"]),
    "gan": ("GAN", "faces", 256, 150, ["width=4"]),
    "lm": ("LM", "tokens", 64, 150, ["width=32", "layers=1"]),
}
STEPS = {"gan": 2}  # optimizer steps of a batch, which Lightning counts
PRECISIONS = {"amp": "16-mixed", "amp_bf16": "bf16-mixed"}
WAYS = ("trainer", "plain", "auto")
WARMUP, LEAST = 30, 0.98
COLUMNS = ("project", "precision", "way", "round", "samples_per_s")


def by_its_own_trainer(name: str, precision: str, steps: int, small: bool) -> float:
    """Samples per second."""
    import projects
    import pytorch_lightning as pl
    import torch

    import mpx

    module, make, batch, _, sizes = PROJECTS[name]
    pl.seed_everything(0, verbose=False)
    size = {key: int(value) for key, value in (word.split("=") for word in sizes)} if small else {}
    watch, matmul = mpx.Throughput(WARMUP), torch.backends.cuda.matmul.fp32_precision
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_steps=STEPS.get(name, 1) * (steps + WARMUP), precision=PRECISIONS[precision], callbacks=[watch], enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, devices=1,
        )  # fmt: skip
        trainer.fit(getattr(projects, module)(**size), projects.Data(make, steps + WARMUP, batch))
    assert torch.backends.cuda.matmul.fp32_precision == matmul
    return watch.samples_per_s


def through_mpx(name: str, precision: str, steps: int, small: bool, way: str) -> float:
    """Samples per second."""
    import mpx

    module, make, batch, _, sizes = PROJECTS[name]
    with tempfile.TemporaryDirectory() as folder:
        words = [f"module._target_=projects.{module}", "datamodule._target_=projects.Data", f"+datamodule.make={make}"]
        words += [f"+datamodule.batches={steps + WARMUP}", f"+datamodule.batch_size={batch}"]
        words += [f"+module.{size}" for size in sizes if small]
        words += [f"precision={precision}", f"trainer.max_steps={STEPS.get(name, 1) * (steps + WARMUP)}", f"trainer.warmup_steps={WARMUP}"]
        words += ["trainer.max_epochs=1", "trainer.progress=off", f"output_dir={folder}"]
        words += ["speed=plain", "trainer.channels_last=false"] if way == "plain" else []
        return mpx.run(words)["speed"]["train_samples_per_s"]


def measure(way: str, *call: Any) -> float:
    gc.collect()  # as mpx.run does: workers of a loader, which are forks, die if they collect another run's CUDA events
    return by_its_own_trainer(*call) if way == "trainer" else through_mpx(*call, way)


def main() -> None:
    parser = Arguments()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--project", nargs="+", choices=PROJECTS, default=list(PROJECTS))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    gpus, pairs, lock = each_gpu(), list(product(given.project, given.precision)), Lock()
    with ExitStack() as stack, ThreadPoolExecutor(len(gpus)) as pool:
        add = stack.enter_context(table(given.folder / "speed.csv", COLUMNS))
        free = SimpleQueue()
        for gpu in gpus:
            free.put({way: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), start, (gpu,))) for way in WAYS})

        def keep(row: dict) -> None:
            with lock:
                add(row)
                print(*row.values(), flush=True)

        list(pool.map(lambda pair: in_turns(*pair, given, free, keep), pairs))
    text, slow = summary(read(given.folder / "speed.csv"))
    (given.folder / "table.md").write_text(text + "\n")
    print(text)
    if slow:
        sys.exit(f"slower than {LEAST} × its own Trainer: {', '.join(slow)}")


def start(env: dict[str, str]) -> None:
    """In a process of its own, before its first run. Workers of data loaders are forks, as in a process that a person starts."""
    os.environ.update(env)
    set_start_method("fork", force=True)
    import mpx  # noqa: F401


def in_turns(name: str, precision: str, given: argparse.Namespace, free: SimpleQueue, keep: Callable[[dict], None]) -> None:
    """Measures one project in one precision on one GPU. free: a process for each way, for every GPU that nothing runs on."""
    call, processes = (name, precision, given.steps or PROJECTS[name][3], given.small), free.get()
    for number in range(given.rounds):
        for way, process in processes.items():
            rate = process.submit(measure, way, *call).result()
            keep({"project": name, "precision": precision, "way": way, "round": number, "samples_per_s": rate})
    free.put(processes)


def summary(rows: list[dict[str, str]]) -> tuple[str, list[str]]:
    """A table in Markdown, and what is slower than the bound."""
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        rates.setdefault((row["project"], row["precision"]), {}).setdefault(row["way"], []).append(float(row["samples_per_s"]))
    lines, slow = [], []
    for case, found in sorted(rates.items()):
        ratios = {way: [mine / own for mine, own in zip(found[way], found["trainer"], strict=True)] for way in WAYS[1:]}
        lines.append([*case, len(found["trainer"]), *(f"{median(found[way]):,.0f}" for way in WAYS), *map(spread, ratios.values())])
        if median(ratios["plain"]) < LEAST:
            slow.append(" ".join(case))
    heads = ["project", "precision", "rounds", "own Trainer", "mpx, plain", "mpx, auto", "plain ÷ own", "auto ÷ own"]
    return markdown(heads, lines), slow


def spread(ratios: list[float]) -> str:
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    main()
