"""Does speed=auto compile when that ends a run sooner? Whole runs of `python -m mpx.train` with it, compiled
and not compiled by hand.

$ python experiments/auto/run.py  # writes results.csv and the tables of README.md here; 8 minutes on one GPU, less on two
$ python experiments/auto/run.py --models resnet50 --out DIR
$ python experiments/auto/run.py --card             # the tables from results.csv
$ python experiments/auto/run.py --tiny --out DIR   # a trial on any machine, means nothing
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "speed"), str(HERE.parent)]
from collecting import Arguments, each_gpu, put_between, read, some_of, table  # noqa: E402
from setups import TITLES, choice, setup  # noqa: E402

LANGUAGE = "language_model"
ORDER = ("resnet50", "bert_small", "resnet18", "lstm", LANGUAGE)
NAMES = TITLES | {LANGUAGE: "language model"}
LENGTHS = (300, 3_000, 30_000)  # steps
SETTLED = 4.0  # seconds that a run goes on once it is decided and its throughput is measured
LONGEST = 200.0  # seconds
WITHIN, OR_S = 1.05, 5.0  # bounds: times the best setting by hand, or seconds more
COLUMNS = (
    "model",
    "setting",
    "cache",
    "steps",
    "wall_s",
    "steps_run",
    "ran_s",
    "samples_per_s",
    "compiled",
    "from_step",
    "why",
    "note",
)
COLUMNS += ("batch", "cores")
MARK, END = "<!-- measured -->", "<!-- end of measured -->"
CARD = """\
**Question.** Compiling costs time first and saves some in each step. Is a whole run with `speed=auto` as short as with the better of
`trainer.compile=default` and `off`? The bound is {within} × the better one, or {or_s:g} s more.

**Setup.** {device}, {cores} CPU cores, torch {torch}. Precision amp_bf16, synthetic data on the device, the sizes of `experiments/speed`;
the language model is the LSTM of `task=lstm_wikitext2` (not measured yet).
Each run is a process of its own, from its start to its end, and has an empty compiler's cache, unless the table says cached: then the
same run came before.

**Command.** `python experiments/auto/run.py`

| wall time, s | steps | off | default | auto | auto compiles | auto − better | |
|---|---|---|---|---|---|---|---|
{walls}

## What was run

A run of 30,000 steps of ResNet-50 takes half an hour. Each run was therefore told to end (SIGTERM) {settled:g} s after its choice was
made and its throughput was known, if it had not ended by itself. Its wall time for N steps is what it had taken, with start and end, plus
the steps that it lacked at its measured throughput. A length that was not run takes its times from a run of the same choice: by hand, the
choice does not depend on the length; auto compiles longer runs where it compiles a shorter one.

| model | setting | cache | steps | steps run | in s | samples/s | compiled from step | why |
|---|---|---|---|---|---|---|---|---|
{runs}
"""


def main() -> None:
    args = options()
    path = args.out / "results.csv"
    if not args.card:
        args.out.mkdir(parents=True, exist_ok=True)
        with table(path, COLUMNS) as add:
            for row in measure(args):
                add(row)
                print({key: row.get(key) for key in COLUMNS[:12]}, flush=True)
    text = card(read(path))
    put_between(MARK, END, text, args.out / "README.md")
    print(text)


def options() -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("--models", type=some_of(ORDER), default=list(ORDER), help=",".join(ORDER))
    parser.add_argument("--seconds", type=float, default=440, help="start no run after so many seconds")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--card", action="store_true", help="measure nothing")
    parser.add_argument("--tiny", action="store_true", help="tiny models; on a CPU nothing compiles")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> Iterator[dict]:
    """Yields a row per run, as it ends. Each GPU takes a model at a time."""
    cores = {"cores": len(os.sched_getaffinity(0))}
    until, free, rows = time.monotonic() + args.seconds, Queue(), Queue()
    for environment in each_gpu():
        free.put(environment)

    def all_of(model: str, stage: Callable[..., Iterator[dict]]) -> None:
        mine = free.get()
        try:
            for row in stage(model, caches, mine, until, args.tiny):
                rows.put(row | cores)
        finally:
            free.put(mine)
            rows.put(None)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(free.qsize()) as pool:
        caches = Path(folder)
        for stage in (first, then):  # what matters most of all models comes before the rest
            running = [pool.submit(all_of, model, stage) for model in args.models]
            for _ in running:
                yield from iter(rows.get, None)  # until the next of them ends
            for one in running:
                one.result()


def first(model: str, caches: Path, env: dict, until: float, tiny: bool) -> Iterator[dict]:
    """By hand, and auto at the lengths on both sides of its choice."""
    yield from runs(model, [("off", LENGTHS[-1]), ("default", LENGTHS[-1])], caches, env, until, tiny)
    yield from (found := list(runs(model, [("auto", LENGTHS[1])], caches, env, until, tiny)))
    if found and not never(found[0]):
        yield from runs(
            model, [("auto", LENGTHS[0] if found[0]["compiled"] else LENGTHS[-1])], caches, env, until, tiny
        )


def then(model: str, caches: Path, env: dict, until: float, tiny: bool) -> Iterator[dict]:
    """What a second seed does, and a short run by hand, which does not search cuDNN's algorithms."""
    yield from runs(
        model, [("auto", LENGTHS[1]), ("default", LENGTHS[-1])], caches, env, until, tiny, cached=True
    )
    yield from runs(model, [("off", LENGTHS[0])], caches, env, until, tiny)


def runs(
    model: str, plan: list, caches: Path, env: dict, until: float, tiny: bool, *, cached: bool = False
) -> Iterator[dict]:
    for setting, steps in plan:
        cache = caches / f"{model}-{setting}-{steps}"
        if time.monotonic() < until and cache.is_dir() == cached:
            cache.mkdir(exist_ok=True)
            row = run(model, setting, steps, env | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}, tiny)
            yield {
                "model": model,
                "setting": setting,
                "cache": "cached" if cached else "empty",
                "steps": steps,
            } | row


def run(model: str, setting: str, steps: int, env: dict, tiny: bool) -> dict:
    """One run, ended once its speed is known; its wall time as if it had gone on."""
    words, batch = trained(model, tiny)
    command = [
        sys.executable,
        "-m",
        "mpx.train",
        *words,
        f"trainer.compile={setting}",
        f"trainer.max_steps={steps}",
    ]
    command += [
        "trainer.max_epochs=100000",
        "trainer.check_val_every_n_epoch=100000",
        "trainer.limit_val_batches=1",
    ]
    command += ["trainer.limit_test_batches=1", "trainer.progress=lines"]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, f"output_dir={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
        )
        last = end_when_settled(process)
        ran_s = time.perf_counter() - began
        files = list(Path(folder).glob("*/*/*/result.json"))
        record = json.loads(files[0].read_text()) if files else {}
    rate = record.get("speed", {}).get("train_samples_per_s")
    # the signal may come while Python exits: no exit code tells
    if rate is None or record["status"] not in ("completed", "interrupted"):
        why = record.get("speed", {}).get("train_samples_per_s_reason")
        return {
            "ran_s": ran_s,
            "compiled": False,
            "note": f"{record.get('status')}, {why}" if why else last[-300:],
        }
    chosen, precision = record["speed"]["chosen"], record["precision"]
    done, compiled = precision["optimizer_steps"] + precision["skipped_steps"], chosen.get("compiled", {})
    row = {
        "wall_s": ran_s + (steps - done) * batch / rate,
        "steps_run": done,
        "ran_s": ran_s,
        "samples_per_s": rate,
    }
    row |= {
        "compiled": chosen["compile"] != "off" and not compiled.get("given_up"),
        "from_step": compiled.get("from_step"),
    }
    return row | {"why": chosen["why"]["compile"], "note": compiled.get("given_up") or "", "batch": batch}


def trained(model: str, tiny: bool) -> tuple[list[str], int]:
    """(what to train, in words of mpx.train; samples in a batch)."""
    if model != LANGUAGE:
        here = setup(model, "amp_bf16", tiny=tiny)
        return choice(here), here.batch
    tokens, batch, vocabulary, hidden = (8, 4, 50, 64) if tiny else (140, 80, 33_278, 640)
    words = (
        f"model=lstm precision=amp_bf16 data=synthetic data.kind=lm data.shape=[{tokens}] "
        f"data.vocab_size={vocabulary} "
    )
    words += (
        f"data.batch_size={batch} data.samples={48 * batch} model.hidden_size={hidden} "
        "model.dropout=0.6 trainer.log_every_n_steps=50"
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


def card(rows: list[dict[str, str]]) -> str:
    sound = [row for row in rows if row["wall_s"]]
    walls = [
        line
        for model in ORDER
        if any(row["model"] == model for row in sound)
        for line in lines_of(model, sound)
    ]
    told = [
        f"| {NAMES[row['model']]} | {row['setting']} | {row['cache']} | {int(row['steps']):,} | "
        f"{row['steps_run'] or '–'} | "
        f"{float(row['ran_s']):.1f} | {shown(row['samples_per_s'])} | {row['from_step'] or '–'} | "
        f"{' '.join(' '.join((row['why'], row['note'])).split()).replace('|', '/')} |"
        for row in rows
    ]
    return CARD.format(
        within=WITHIN, or_s=OR_S, settled=SETTLED, walls="\n".join(walls), runs="\n".join(told),
        **{key: rows[0][key] for key in ("device", "cores", "torch")},
    )  # fmt: skip


def lines_of(model: str, rows: list[dict[str, str]]) -> Iterator[str]:
    rows = [row for row in rows if row["model"] == model]
    for steps in LENGTHS:
        for cache in ("empty", "cached"):
            there = [row for row in rows if row["cache"] == cache or row["setting"] == "off"]
            off, default, auto = (
                wall([row for row in there if row["setting"] == name], steps)
                for name in ("off", "default", "auto")
            )
            better = min((found[0] for found in (off, default) if found is not None), default=None)
            cells = [f"{found[0]:,.1f}" if found is not None else "–" for found in (off, default, auto)]
            if auto is not None or cache == "empty":
                title = NAMES[model] + (", cached" if cache == "cached" else "")
                yield f"| {title} | {steps:,} | {' | '.join(cells)} | {judged(auto, better)} |"


def judged(auto: tuple[float, bool] | None, better: float | None) -> str:
    if auto is None or better is None:
        return "– | – | not measured"
    held = auto[0] <= max(WITHIN * better, better + OR_S)
    return f"{'yes' if auto[1] else 'no'} | {auto[0] - better:+.1f} | {'**held**' if held else 'not held'}"


def never(row: dict) -> bool:
    """Whether auto compiles no run of this model, however long."""
    return row["compiled"] in (False, "False") and " batches of " not in row.get("why", "")


def wall(rows: list[dict[str, str]], steps: int) -> tuple[float, bool] | None:
    """(seconds of a run of so many steps, whether it is compiled), from the run of the nearest length that
    chose alike.
    """
    for row in sorted(rows, key=lambda row: abs(int(row["steps"]) - steps)):
        compiled, ran = row["compiled"] == "True", int(row["steps"])
        if (
            row["setting"] != "auto"
            or never(row)
            or ran == steps
            or (steps > ran if compiled else steps < ran)
        ):
            return float(row["wall_s"]) + (steps - ran) * float(row["batch"]) / float(
                row["samples_per_s"]
            ), compiled
    return None


if __name__ == "__main__":
    main()
