"""Does speed=auto compile when that ends a run sooner? Whole runs of `python -m mpx.train` with it, compiled
and not compiled by hand.

$ python experiments/auto/run.py  # writes results.csv and the tables of README.md here; 8 minutes on one GPU, less on two
$ OUT=DIR python experiments/auto/run.py --models resnet50  # writes DIR/results.csv
$ python experiments/auto/run.py --card   # the tables from results.csv
$ python experiments/auto/run.py --tiny   # a trial on any machine, means nothing
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "speed"), str(HERE.parent)]
from collecting import Arguments, each_on_its_own, experiment, in_memory, markdown, said, some_of  # noqa: E402
from setups import TITLES, choice, setup  # noqa: E402

LANGUAGE = "language_model"
ORDER = ("resnet50", "bert_small", "resnet18", "lstm", LANGUAGE)
NAMES = TITLES | {LANGUAGE: "language model"}
LENGTHS = (300, 3_000, 30_000)  # steps
SETTLED = 4.0  # seconds that a run goes on once it is decided and its throughput is measured
LONGEST = 200.0  # seconds
WITHIN, OR_S = 1.05, 5.0  # bounds: times the best setting by hand, or seconds more
WALLS = ("wall time, s", "steps", "off", "default", "auto", "auto compiles", "auto − better", "")
RUNS = ("model", "setting", "steps", "steps run", "in s", "samples/s", "compiled from step", "why")
COLUMNS = ("model", "setting", "steps", "wall_s", "steps_run", "ran_s", "samples_per_s", "compiled")
COLUMNS += ("from_step", "why", "note", "batch", "cores")


def main() -> None:
    parser = Arguments()
    parser.add_argument("--models", type=some_of(ORDER), default=list(ORDER), help=",".join(ORDER))
    parser.add_argument("--seconds", type=float, default=440, help="start no run after so many seconds")
    parser.add_argument("--tiny", action="store_true", help="tiny models; on a CPU nothing compiles")
    experiment(HERE, COLUMNS, measure, card, parser=parser)


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """Yields a row per run. Each GPU takes a model at a time."""
    cores, until = {"cores": len(os.sched_getaffinity(0))}, time.monotonic() + args.seconds

    def all_of(model: str, env: dict[str, str]) -> list[dict]:
        return [row | cores for row in runs(model, env, until, args.tiny)]

    for rows in each_on_its_own(all_of, args.models):
        yield from rows


def runs(model: str, env: dict[str, str], until: float, tiny: bool) -> Iterator[dict]:
    """By hand; auto at the lengths on both sides of its choice; a short run by hand, which does not search
    cuDNN's algorithms.
    """
    short, middle, long = LENGTHS
    plan = [("off", long), ("default", long), ("auto", middle), ("off", short)]
    while plan and time.monotonic() < until:
        setting, steps = plan.pop(0)
        row = run(model, setting, steps, env, tiny)
        yield {"model": model, "setting": setting, "steps": steps} | row
        if (setting, steps) == ("auto", middle) and not never(row):
            plan.insert(0, ("auto", short if row["compiled"] else long))


def run(model: str, setting: str, steps: int, env: dict, tiny: bool) -> dict:
    """One run, ended once its speed is known; its wall time as if it had gone on."""
    words, batch = trained(model, tiny)
    few = "trainer.max_epochs=100000 trainer.check_val_every_n_epoch=100000 trainer.limit_val_batches=1"
    few += f" trainer.limit_test_batches=1 trainer.progress=lines trainer.compile={setting} trainer.max_steps={steps}"
    command = [sys.executable, "-m", "mpx.train", *words, *few.split()]
    with in_memory() as folder, tempfile.TemporaryDirectory() as cache:
        env = os.environ | env | {"TORCHINDUCTOR_CACHE_DIR": cache}
        began = time.perf_counter()
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([*command, f"output_dir={folder}"], env=env, **pipe)
        last = end_when_settled(process)
        ran_s = time.perf_counter() - began
        files = list(Path(folder).glob("*/*/*/result.json"))
        record = json.loads(files[0].read_text()) if files else {}
    rate = record.get("speed", {}).get("train_samples_per_s")
    # the signal may come while Python exits: no exit code tells
    if rate is None or record["status"] not in ("completed", "interrupted"):
        why = record.get("speed", {}).get("train_samples_per_s_reason")
        note = f"{record.get('status')}, {why}" if why else last[-300:]
        return {"ran_s": ran_s, "compiled": False, "note": note}
    chosen, precision = record["speed"]["chosen"], record["precision"]
    done, compiled = precision["optimizer_steps"] + precision["skipped_steps"], chosen.get("compiled", {})
    wall_s = ran_s + (steps - done) * batch / rate
    row = {"wall_s": wall_s, "steps_run": done, "ran_s": ran_s, "samples_per_s": rate, "batch": batch}
    given_up = compiled.get("given_up") or ""
    row |= {"compiled": chosen["compile"] != "off" and not given_up, "from_step": compiled.get("from_step")}
    return row | {"why": chosen["why"]["compile"], "note": given_up}


def trained(model: str, tiny: bool) -> tuple[list[str], int]:
    """(what to train, in words of mpx.train; samples in a batch)."""
    if model != LANGUAGE:
        here = setup(model, "amp_bf16", tiny=tiny)
        return choice(here), here.batch
    tokens, batch, vocabulary, hidden = (8, 4, 50, 64) if tiny else (140, 80, 33_278, 640)
    words = (
        f"model=lstm precision=amp_bf16 data=synthetic data.kind=lm data.shape=[{tokens}] data.batch_size={batch} "
        f"data.vocab_size={vocabulary} data.samples={48 * batch} model.hidden_size={hidden} model.dropout=0.6 "
        "trainer.log_every_n_steps=50"
    )
    return words.split(), batch


def end_when_settled(process: subprocess.Popen) -> str:
    """Returns what the process said last, and is ended by then."""
    began, since, decided, last = time.monotonic(), None, False, ""
    for line in process.stdout:
        last = (last + line)[-600:]
        if line.startswith("speed: "):
            decided = "not compiled yet" not in line
        if since is None and decided and line.startswith("epoch ") and "samples/s" in line:
            since = time.monotonic()
        if (since is not None and time.monotonic() - since > SETTLED) or time.monotonic() - began > LONGEST:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            since = began = float("inf")
    process.wait()
    return last


def shown(rate: str) -> str:
    return f"{float(rate):,.0f}" if rate else "–"


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The tables of the card."""
    sound = [row for row in rows if row["wall_s"]]
    models = [model for model in ORDER if any(row["model"] == model for row in sound)]
    walls = markdown(WALLS, [cells for model in models for cells in lines_of(model, sound)])
    told = []
    for row in rows:
        why = " ".join((row["why"], row["note"])).replace("|", "/").split()
        told.append(
            [NAMES[row["model"]], row["setting"], f"{int(row['steps']):,}", row["steps_run"] or "–",
            f"{float(row['ran_s']):.1f}", shown(row["samples_per_s"]), row["from_step"] or "–", " ".join(why)]
        )  # fmt: skip
    setup = said(rows, "{device}, {cores} CPU cores, torch {torch}")
    return {"walls": f"{setup}.\n\n{walls}", "runs": markdown(RUNS, told)}


def lines_of(model: str, rows: list[dict[str, str]]) -> Iterator[list[str]]:
    rows = [row for row in rows if row["model"] == model]
    for steps in LENGTHS:
        off, default, auto = (
            wall([row for row in rows if row["setting"] == name], steps)
            for name in ("off", "default", "auto")
        )
        better = min((run[0] for run in (off, default) if run is not None), default=None)
        times = [f"{run[0]:,.1f}" if run is not None else "–" for run in (off, default, auto)]
        yield [NAMES[model], f"{steps:,}", *times, *judged(auto, better)]


def judged(auto: tuple[float, bool] | None, better: float | None) -> list[str]:
    if auto is None or better is None:
        return ["–", "–", "not measured"]
    held = auto[0] <= max(WITHIN * better, better + OR_S)
    return ["yes" if auto[1] else "no", f"{auto[0] - better:+.1f}", "**held**" if held else "not held"]


def never(row: dict) -> bool:
    """Whether auto compiles no run of this model, however long."""
    return row["compiled"] in (False, "False") and " batches of " not in row.get("why", "")


def wall(rows: list[dict[str, str]], steps: int) -> tuple[float, bool] | None:
    """(seconds of a run of so many steps, whether it is compiled), from the run of the nearest length that
    chose alike.
    """
    for row in sorted(rows, key=lambda row: abs(int(row["steps"]) - steps)):
        compiled, ran = row["compiled"] == "True", int(row["steps"])
        longer = steps > ran if compiled else steps < ran
        if row["setting"] != "auto" or never(row) or ran == steps or longer:
            lacking = (steps - ran) * float(row["batch"]) / float(row["samples_per_s"])
            return float(row["wall_s"]) + lacking, compiled
    return None


if __name__ == "__main__":
    main()
