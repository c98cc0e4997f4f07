"""How much faster are several GPUs than one? mpx with speed=auto as for a long run, and a loop by hand whose
DDP step is one CUDA graph.

$ python experiments/scaling/run.py --rounds 1  # writes results.csv and README.md beside this file; about 9 minutes on four GPUs
$ python experiments/scaling/run.py --models lstm --rounds 1 --out DIR
$ python experiments/scaling/run.py --card              # README.md from results.csv
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue

HERE = Path(__file__).parent
SPEED = HERE.parent / "speed"
sys.path[:0] = [str(SPEED), str(HERE.parent)]
from collecting import Arguments, each_gpu, fill, markdown, read, said, some_of, table  # noqa: E402
from setups import TITLES, WARMUP, choice, setup  # noqa: E402

ORDER = ("resnet18", "lstm", "bert_small", "resnet50")
GPUS = (1, 2, 4)
COLUMNS = (
    "model",
    "contender",
    "gpus",
    "round",
    "samples_per_s",
    "step_ms_p50",
    "step_ms_p95",
    "all_reduce_ms",
)
COLUMNS += ("gradient_mib", "graphed", "compiled", "mfu", "rejected", "note")
STEPS = 2  # times those of experiments/speed, since a pause of one rank holds both
LEAST, SHARE = 1.85, 0.98  # bounds: two GPUs ÷ one; mpx ÷ by hand
MISSING = "–"
HEADS = ("samples/s", "GPUs", "mpx", "× one", "by hand", "× one", "mpx ÷ by hand")


def main() -> None:
    args = options()
    path = args.out / "results.csv"
    if not args.card:
        args.out.mkdir(parents=True, exist_ok=True)
        with table(path, COLUMNS) as add:
            for row in measure(args):
                add(row)
                print({key: row.get(key) for key in (*COLUMNS[:7], "note")}, flush=True)
    if args.card or args.out == HERE:
        fill(args.out / "README.md", card(read(path)))


def options() -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("--models", type=some_of(ORDER), default=list(ORDER), help=",".join(ORDER))
    parser.add_argument("--contenders", type=some_of(CONTENDERS), default=["mpx", "hand"])
    parser.add_argument("--gpus", type=some_of(GPUS), default=list(GPUS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--card", action="store_true", help="measure nothing")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """Yields a row per measurement, each on GPUs of its own: with four GPUs, four measurements on one run at
    once, or two on two.
    """
    every = [environment["CUDA_VISIBLE_DEVICES"] for environment in each_gpu()]
    for number in range(args.rounds):
        for gpus in (count for count in args.gpus if count <= len(every)):
            for contender in args.contenders:
                with ThreadPoolExecutor(len(every) // gpus) as pool:
                    rows = pool.map(
                        partial(on_its_own, contender, gpus, free_groups(every, gpus)), args.models
                    )
                    for model, row in zip(args.models, rows, strict=True):
                        yield {"model": model, "contender": contender, "gpus": gpus, "round": number} | row


def free_groups(every: list[str], gpus: int) -> Queue[dict[str, str]]:
    free: Queue[dict[str, str]] = Queue()
    for first in range(0, len(every) - gpus + 1, gpus):
        free.put({"CUDA_VISIBLE_DEVICES": ",".join(every[first : first + gpus])})
    return free


def on_its_own(contender: str, gpus: int, free: Queue[dict[str, str]], model: str) -> dict:
    mine = free.get()
    try:
        return CONTENDERS[contender](model, gpus, mine)
    finally:
        free.put(mine)


def mpx(model: str, gpus: int, env: dict[str, str]) -> dict:
    here = setup(model, "amp_bf16", tiny=False)
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={gpus}"]
    program = [*([sys.executable] if gpus == 1 else torchrun), "-m", "mpx.train"]
    words = (
        f"trainer.devices={gpus} data.samples={here.batch * here.batches * gpus} trainer.benchmark=true "
        f"trainer.compile={'off' if model == 'lstm' else 'default'} trainer.max_steps={STEPS * here.steps + WARMUP} "
        f"trainer.warmup_steps={WARMUP} trainer.max_epochs=1000 trainer.check_val_every_n_epoch=1000 "
        "trainer.limit_val_batches=1 trainer.limit_test_batches=1 trainer.progress=off"
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        command = [*program, *choice(here), *words.split(), f"output_dir={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | env)
        files = list(Path(folder).glob("*/*/*/result.json"))
        if not files:
            return {"note": (done.stdout + done.stderr)[-300:]}
        speed = json.loads(files[0].read_text())["speed"]
    chosen = speed.get("chosen", {})
    row = {name: speed[name] for name in ("step_ms_p50", "step_ms_p95", "mfu")}
    row |= {
        "samples_per_s": speed["train_samples_per_s"],
        "note": chosen.get("graph", {}).get("given_up") or "",
    }
    row |= {"graphed": chosen.get("graph", {}).get("replayed_steps", 0)}
    row |= {"compiled": chosen.get("compiled", {}).get("compiled_calls", 0)}
    return row if done.returncode == 0 else row | {"note": (done.stdout + done.stderr)[-300:]}


def by_hand(model: str, gpus: int, env: dict[str, str]) -> dict:
    command = [
        "torchrun",
        "--standalone",
        f"--nproc-per-node={gpus}",
        str(HERE / "hand.py"),
        "--model",
        model,
    ]
    environment = os.environ | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"} | env
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(found[0]) | {"note": ""} if found else {"note": done.stderr[-300:]}


CONTENDERS = {"mpx": mpx, "hand": by_hand}


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The table of the card."""
    lines, most = [], max(int(row["gpus"]) for row in rows)
    for model in (name for name in ORDER if any(row["model"] == name for row in rows)):
        of_model = [row for row in rows if row["model"] == model]
        ours, by_hand = ({gpus: median(of_model, who, str(gpus)) for gpus in GPUS} for who in ("mpx", "hand"))
        for gpus in (gpus for gpus in GPUS if gpus <= most):
            least, share = (LEAST, SHARE) if gpus == 2 else (None, None)
            more = [MISSING, MISSING]
            if gpus > 1:
                more = [judged(ours[gpus], ours[1], least), judged(by_hand[gpus], by_hand[1])]
            beside = judged(ours[gpus], by_hand[gpus], share)
            lines.append(
                [TITLES[model], gpus, shown(ours[gpus]), more[0], shown(by_hand[gpus]), more[1], beside]
            )
    turns = Counter((row["model"], row["contender"], row["gpus"]) for row in rows if row["samples_per_s"])
    setup = said(rows, f"{most} × {{device}}, torch {{torch}}")
    hosts, rounds = len({row["host"] for row in rows}), " or ".join(map(str, sorted(set(turns.values()))))
    return {"rates": f"{setup}, medians of rounds ({rounds}), hosts: {hosts}.\n\n{markdown(HEADS, lines)}"}


def shown(rate: float | None) -> str:
    return f"{rate:,.0f}" if rate else MISSING


def judged(rate: float | None, against: float | None, least: float | None = None) -> str:
    if not rate or not against:
        return MISSING
    ratio = rate / against
    if least is None or ratio >= least:
        return f"{ratio:.2f}" + (f" (≥ {least}: yes)" if least else "")
    return f"{ratio:.{3 if round(ratio, 2) >= least else 2}f} (≥ {least}: no)"


def median(rows: list[dict[str, str]], contender: str, gpus: str) -> float | None:
    mine = (
        row for row in rows if (row["contender"], row["gpus"]) == (contender, gpus) and not row["rejected"]
    )
    found = [float(row["samples_per_s"]) for row in mine if row["samples_per_s"]]
    return statistics.median(found) if found else None


if __name__ == "__main__":
    main()
