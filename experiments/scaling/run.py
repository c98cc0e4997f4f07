"""How much faster are several GPUs than one? mpx with speed=auto as for a long run, and a loop by hand whose
DDP step is one CUDA graph.

$ python experiments/scaling/run.py --rounds 1  # writes results.csv and README.md beside this file; about 9 minutes on four GPUs
$ OUT=DIR python experiments/scaling/run.py --models lstm --rounds 1  # writes DIR/results.csv
$ python experiments/scaling/run.py --card              # README.md from results.csv
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "speed"), str(HERE.parent)]
from collecting import ONLY_STEPS, Arguments, each_on_its_own, experiment, in_memory, markdown, said, some_of  # noqa: E402
from setups import TITLES, WARMUP, choice, setup  # noqa: E402

ORDER = ("resnet18", "lstm", "bert_small", "resnet50")
GPUS = (1, 2, 4)
COLUMNS = ("model", "contender", "gpus", "round", "samples_per_s", "step_ms_p50", "step_ms_p95")
COLUMNS += ("all_reduce_ms", "gradient_mib", "graphed", "compiled", "mfu", "rejected", "note")
STEPS = 2  # times those of experiments/speed, since a pause of one rank holds both
LEAST, SHARE = 1.85, 0.98  # bounds: two GPUs ÷ one; mpx ÷ by hand
MISSING = "–"
HEADS = ("samples/s", "GPUs", "mpx", "× one", "by hand", "× one", "mpx ÷ by hand")


def main() -> None:
    parser = Arguments()
    parser.add_argument("--models", type=some_of(ORDER), default=list(ORDER), help=",".join(ORDER))
    parser.add_argument("--contenders", type=some_of(CONTENDERS), default=["mpx", "hand"])
    parser.add_argument("--gpus", type=some_of(GPUS), default=list(GPUS))
    parser.add_argument("--rounds", type=int, default=2)
    experiment(HERE, COLUMNS, measure, card, parser=parser)


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """Yields a row per measurement, each on GPUs of its own: with four GPUs, four measurements on one run at
    once, or two on two.
    """
    import torch

    for number in range(args.rounds):
        for gpus in (count for count in args.gpus if count <= torch.cuda.device_count()):
            for contender in args.contenders:
                run = partial(CONTENDERS[contender], gpus=gpus)
                for model, row in zip(args.models, each_on_its_own(run, args.models, gpus), strict=True):
                    yield {"model": model, "contender": contender, "gpus": gpus, "round": number} | row


def mpx(model: str, env: dict[str, str], gpus: int) -> dict:
    here = setup(model, "amp_bf16", tiny=False)
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={gpus}"]
    program = [*([sys.executable] if gpus == 1 else torchrun), "-m", "mpx.train"]
    words = (
        f"trainer.devices={gpus} data.samples={here.batch * here.batches * gpus} trainer.benchmark=true "
        f"trainer.compile={'off' if model == 'lstm' else 'default'} trainer.max_steps={STEPS * here.steps + WARMUP} "
        f"trainer.warmup_steps={WARMUP} trainer.progress=off"
    )
    with in_memory() as folder:
        command = [*program, *choice(here), *words.split(), *ONLY_STEPS, f"output_dir={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | env)
        files = list(Path(folder).glob("*/*/*/result.json"))
        if not files:
            return {"note": (done.stdout + done.stderr)[-300:]}
        speed = json.loads(files[0].read_text())["speed"]
    chosen = speed.get("chosen", {})
    graph, compiled = chosen.get("graph", {}), chosen.get("compiled", {})
    row = {name: speed[name] for name in ("step_ms_p50", "step_ms_p95", "mfu")}
    row |= {"samples_per_s": speed["train_samples_per_s"], "note": graph.get("given_up") or ""}
    row |= {"graphed": graph.get("replayed_steps", 0), "compiled": compiled.get("compiled_calls", 0)}
    return row if done.returncode == 0 else row | {"note": (done.stdout + done.stderr)[-300:]}


def by_hand(model: str, env: dict[str, str], gpus: int) -> dict:
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={gpus}"]
    command = [*torchrun, str(HERE / "hand.py"), "--model", model]
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
