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
from collecting import Arguments, each_gpu, read, some_of, table  # noqa: E402
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
    "gradient_mib",
)
COLUMNS += ("graphed", "compiled", "mfu", "rejected", "note")
STEPS = 2  # times those of experiments/speed, since a pause of one rank holds both
LEAST, SHARE = 1.85, 0.98  # bounds: two GPUs ÷ one; mpx ÷ by hand
MISSING = "–"
# GB/s for each GPU between hosts, of a network with 400 Gb/s for each GPU; assumed, not measured
NETWORK = 50.0
CARD = """# How much faster are several GPUs than one?

**Question.** Does `trainer.devices=2` train twice as fast as one GPU, `4` four times, and as fast as a loop by hand whose whole step, with
the all-reduce, is one CUDA graph? The bounds for two are {least} × one GPU and {share} × the loop by hand.

**Setup.** {most} × {device}, torch {torch}, precision amp_bf16, synthetic data on the device, sizes of `experiments/speed` for each GPU.
mpx runs with what `speed=auto` takes for a long run: CUDA graphs, torch.compile (not for the LSTM, which is cuDNN's), cuDNN's search. The
loop by hand (`hand.py`) uses the libraries' models, compiled, in channels_last, with a fused optimizer, DDP and one CUDA graph. Autocast
runs its LSTM in FP16 ([speed](../speed)). It zeroes its gradients in place, on one GPU too, where the loop of speed lets go of them.
{rounds}, {calls}. Measurements run beside one another on GPUs of their own, as many as there are GPUs for.

**Command.** `python experiments/scaling/run.py`

| samples/s | GPUs | mpx | × one | by hand | × one | mpx ÷ by hand |
|---|---|---|---|---|---|---|
{rates}

BERT-small classifies by the mean of all tokens (`model.pool=mean`), so that mpx computes the whole last layer, as the rival does.{rejected}

## Projection

The efficiency of two and four GPUs is measured. That of eight and 64 is what it would be if nothing of an all-reduce of all gradients
overlapped with the backward pass and a step lost nothing else. That is no bound: two GPUs lost more than this all-reduce takes, so more
may, too. A ring sends 2 (n − 1) ÷ n times the gradients over each link. Eight GPUs of one host are taken to have the bandwidth measured
here for two; 64 GPUs are eight hosts with {network:g} GB/s for each GPU, which is assumed.

| | gradients, MiB | step, ms | all-reduce of 2, ms | efficiency of 2 | of 4 | of 8, by the all-reduce | of 64, by the all-reduce |
|---|---|---|---|---|---|---|---|
{projection}

## What we learnt

- Two GPUs train the LSTM 1.848 times as fast as one, just below the bound of {least}, and BERT-small 1.852 times. Two earlier rounds
  measured 1.83 and 1.86, and 1.83 and 1.85 (`earlier.csv`). Their median steps were those of this call within 1 %. A few steps beyond the
  95th percentile make the difference, since the LSTM's mean step is longer than that percentile; why they take longer is not known.
- Four GPUs lose little more than two: the median step of the LSTM takes 5.91 ms on one, 6.34 on two and 6.42 on four, that of BERT-small
  10.74, 11.59 and 11.77. The all-reduce of the LSTM's gradients alone takes 0.29 of the 0.42 ms that two GPUs lose. cuDNN returns all
  gradients of the recurrent layers at once, and those of the embedding come last, so that little of it overlaps with the backward pass.
- ResNet-50 comes from an earlier call, which had two GPUs.
- A communication hook with which NCCL averages (ReduceOp.AVG), so that DDP divides nothing itself, left the median steps as they were
  (`earlier.csv`, `mpx_hook`). mpx does without it.
"""


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
        (args.out / "README.md").write_text(card(read(path)))


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
    program = (
        [sys.executable, "-m", "mpx.train"]
        if gpus == 1
        else ["torchrun", "--standalone", f"--nproc-per-node={gpus}", "-m", "mpx.train"]
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        command = [*program, *choice(here), f"output_dir={folder}", f"trainer.devices={gpus}"]
        command += [
            f"data.samples={here.batch * here.batches * gpus}",
            f"trainer.compile={'off' if model == 'lstm' else 'default'}",
        ]
        command += [
            "trainer.benchmark=true",
            f"trainer.max_steps={STEPS * here.steps + WARMUP}",
            f"trainer.warmup_steps={WARMUP}",
        ]
        command += [
            "trainer.max_epochs=1000",
            "trainer.check_val_every_n_epoch=1000",
            "trainer.limit_val_batches=1",
        ]
        command += ["trainer.limit_test_batches=1", "trainer.progress=off"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | env)
        files = list(Path(folder).glob("*/*/*/result.json"))
        if not files:
            return {"note": (done.stdout + done.stderr)[-300:]}
        speed = json.loads(files[0].read_text())["speed"]
    chosen = speed.get("chosen", {})
    row = {name: speed[name] for name in ("step_ms_p50", "step_ms_p95", "mfu")} | {
        "samples_per_s": speed["train_samples_per_s"]
    }
    row |= {"note": chosen.get("graph", {}).get("given_up") or ""}
    row |= {
        "graphed": chosen.get("graph", {}).get("replayed_steps", 0),
        "compiled": chosen.get("compiled", {}).get("compiled_calls", 0),
    }
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
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"} | env,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(found[0]) | {"note": ""} if found else {"note": done.stderr[-300:]}


CONTENDERS = {"mpx": mpx, "hand": by_hand}


def card(rows: list[dict[str, str]]) -> str:
    rates, projection, most = [], [], max(int(row["gpus"]) for row in rows)
    for model in (name for name in ORDER if any(row["model"] == name for row in rows)):
        mine = [row for row in rows if row["model"] == model]
        ours, theirs = ({gpus: median(mine, who, str(gpus)) for gpus in GPUS} for who in ("mpx", "hand"))
        rates += [
            f"| {TITLES[model]} | {gpus} | {cells(ours, theirs, gpus)} |" for gpus in GPUS if gpus <= most
        ]
        if ours[1] and any(row["all_reduce_ms"] for row in mine):
            projection.append(project(model, mine, ours))
    counted = (row for row in rows if row["samples_per_s"] and row["contender"] in CONTENDERS)
    turns = sorted(set(Counter((row["model"], row["contender"], row["gpus"]) for row in counted).values()))
    hosts, rounds = len({row["host"] for row in rows}), " or ".join(map(str, turns))
    reasons = sorted({(TITLES[row["model"]], row["rejected"]) for row in rows if row["rejected"]})
    projection = projection or [f"| {MISSING} |" + " – |" * 7]
    return CARD.format(
        least=LEAST, share=SHARE, network=NETWORK, rates="\n".join(rates), projection="\n".join(projection),
        rejected="".join(f" The loop by hand of {model} does not count: {reason}." for model,
        reason in reasons),
        rounds="One round" if turns == [1] else f"Medians of {rounds} rounds", device=rows[0]["device"],
        torch=rows[0]["torch"], most=most,
        calls="all from one call on one host" if hosts == 1 else f"from calls on {hosts} hosts of the same "
                                                                 "kind",
    )  # fmt: skip


def cells(ours: dict[int, float | None], theirs: dict[int, float | None], gpus: int) -> str:
    """What follows the number of GPUs in a row of the table."""
    least, share = (LEAST, SHARE) if gpus == 2 else (None, None)
    more, theirs_more = (
        (judged(ours[gpus], ours[1], least), judged(theirs[gpus], theirs[1]))
        if gpus > 1
        else (MISSING, MISSING)
    )
    return " | ".join(
        (shown(ours[gpus]), more, shown(theirs[gpus]), theirs_more, judged(ours[gpus], theirs[gpus], share))
    )


def shown(rate: float | None) -> str:
    return f"{rate:,.0f}" if rate else MISSING


def judged(rate: float | None, against: float | None, least: float | None = None) -> str:
    if not rate or not against:
        return MISSING
    ratio = rate / against
    if least is None or ratio >= least:
        return f"{ratio:.2f}" + (f" (≥ {least}: yes)" if least else "")
    return f"{ratio:.{3 if round(ratio, 2) >= least else 2}f} (≥ {least}: no)"


def project(model: str, rows: list[dict[str, str]], ours: dict[int, float | None]) -> str:
    size = float(next(row["gradient_mib"] for row in rows if row["gradient_mib"]))
    pair = statistics.median(
        float(row["all_reduce_ms"]) for row in rows if row["all_reduce_ms"] and row["gpus"] == "2"
    )
    step = setup(model, "amp_bf16", tiny=False).batch / ours[1] * 1e3
    eight = pair * ring(8) / ring(2)
    many = ring(64) * size * 2**20 / (NETWORK * 1e9) * 1e3
    shares = " | ".join(f"{step / (step + lost):.0%}" for lost in (eight, many))
    here = " | ".join(f"{ours[gpus] / ours[1] / gpus:.1%}" if ours[gpus] else MISSING for gpus in GPUS[1:])
    return f"| {TITLES[model]} | {size:,.0f} | {step:.2f} | {pair:.2f} | {here} | {shares} |"


def ring(gpus: int) -> float:
    return 2 * (gpus - 1) / gpus


def median(rows: list[dict[str, str]], contender: str, gpus: str) -> float | None:
    mine = (
        row for row in rows if (row["contender"], row["gpus"]) == (contender, gpus) and not row["rejected"]
    )
    found = [float(row["samples_per_s"]) for row in mine if row["samples_per_s"]]
    return statistics.median(found) if found else None


if __name__ == "__main__":
    main()
