"""How long does a study take one job after another, and with several jobs on the GPU? And is the verdict the same?

$ python experiments/study_time/run.py                          # results.csv and the tables of README.md; under ten minutes on an H100
$ python experiments/study_time/run.py --share 4 --seeds 3      # less; also --tasks, --precisions, --epochs
$ python experiments/study_time/run.py --root DIR --tasks lstm_sst2 --mps   # on data with files; jobs share the GPU by NVIDIA MPS, too
$ python experiments/study_time/run.py --card A/results.csv B/results.csv   # one card of several calls
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, put_between, read, table, write

from mpx.compare.aggregate import compare
from mpx.compare.collect import collect
from mpx.compare.comparison import Group
from mpx.compare.verdict import fastest_to_train

CONTROL = "nvidia-cuda-mps-control"
COLUMNS = (
    "study", "share", "mps", "wall_s", "jobs", "task", "outcome", "fastest", "speedup", "speedup_low", "speedup_high",
    "accuracy_difference", "verdict", "device", "cores", "torch",
)  # fmt: skip
MARK, END = "<!-- measured -->", "<!-- end of measured -->"
CARD = """\
**Question.** `gpu_share=K` runs K jobs of a study beside one another on a GPU, and measures each setting's speed alone at the end. Does the
study take at most half of the time, with the same verdict?

**Setup.** Each study is one sweep over tasks, formats and seeds, dense. A run that is not counted comes first, because it fills the caches.

{studies}
"""
STUDY = """## {study}

{jobs} runs on {device}, {cores} CPU cores, torch {torch}.

| jobs at once on the GPU | wall time, s | share of the time one by one |
|---|---|---|
{times}

{verdicts}"""


def arguments() -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("--tasks", default="lstm_digits,resnet20_digits")
    parser.add_argument("--precisions", default="fp32,tf32,amp,amp_bf16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="instead of the tasks' own")
    parser.add_argument("--share", type=int, default=8, help="jobs at once on the GPU")
    parser.add_argument("--root", help="folder of the data sets that have files")
    parser.add_argument("--mps", action="store_true", help="also with kernels of several jobs at the same time, by NVIDIA MPS")
    parser.add_argument("--card", type=Path, nargs="+", metavar="CSV", help="measure nothing; results.csv and README.md from these files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for results.csv and README.md")
    return parser.parse_args()


def words(given: argparse.Namespace) -> list[str]:
    """The study, without its name and gpu_share."""
    seeds = ",".join(map(str, range(given.seeds)))
    found = [f"task={given.tasks}", f"precision={given.precisions}", f"seed={seeds}"]
    found += [f"trainer.max_epochs={given.epochs}"] if given.epochs else []
    return found + ([f"data.root={Path(given.root).resolve()}"] if given.root else [])


def seconds(folder: Path, *command: str, environment: Mapping[str, str] = os.environ, allowed: int = 0) -> float:
    """The wall time of a command of mpx.train. allowed: an exit code that is no error, besides 0."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "mpx.train", *command], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode not in (0, allowed):
        raise SystemExit(done.stderr.decode()[-2000:])
    return time.perf_counter() - start


def study(given: argparse.Namespace, folder: Path, share: int, *, by_mps: bool) -> list[dict]:
    """One row per task."""
    name = f"share{share}" + "-mps" * by_mps
    command = ("-m", *words(given), f"study={name}", f"gpu_share={share}")
    wall = 0.0
    if by_mps:  # mpx measures no speed under it, and ends with 1
        with mps() as environment:
            wall = seconds(folder, *command, environment=environment, allowed=1)
    wall += seconds(folder, *command)
    place = folder / "outputs" / name
    runs, left_out = collect(place)
    assert not left_out, left_out
    found = compare(runs, study=name, control="auto", metric="auto", margin=0.01, confidence=0.95, folder=place)
    environment = runs[0].environment
    about = {"device": runs[0].device, "cores": len(os.sched_getaffinity(0)), "torch": environment["torch"]}
    about |= {"study": given.tasks, "share": share, "mps": int(by_mps), "wall_s": wall, "jobs": len(runs)}
    return [about | verdict(group) for group in found.groups]


@contextmanager
def mps() -> Iterator[Mapping[str, str]]:
    """NVIDIA MPS for the processes with this environment: kernels of several of them run at the same time."""
    with tempfile.TemporaryDirectory() as folder:  # CUDA_VISIBLE_DEVICES must name GPUs by UUID: the daemon has numbers of its own
        environment = os.environ | {f"CUDA_MPS_{name}_DIRECTORY": folder for name in ("PIPE", "LOG")}
        subprocess.run([CONTROL, "-d"], env=environment, check=True)
        try:
            yield environment
        finally:
            subprocess.run([CONTROL], input="quit\n", env=environment, text=True, check=True, stdout=subprocess.DEVNULL)


def verdict(group: Group) -> dict:
    """The verdict on one task."""
    answer = fastest_to_train(group, 0.95)
    row = {"task": f"{group.model}_{group.data}", "outcome": answer.outcome.name, "verdict": group.train_verdict}
    if answer.best is None:
        return row
    speedup, decision = answer.best.speedup, answer.best.decision
    row |= {"fastest": answer.best.setting, "accuracy_difference": decision.difference}
    return row | {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}


def card(rows: list[dict[str, str]]) -> str:
    return CARD.format(studies="\n\n".join(part(list(rows)) for _, rows in groupby(rows, lambda row: row["study"])))


def part(rows: list[dict[str, str]]) -> str:
    """The part of the card about one study."""
    ways = {f"{row['share']}, by NVIDIA MPS" if row["mps"] == "1" else row["share"]: float(row["wall_s"]) for row in rows}
    times = "\n".join(f"| {way} | {wall:.0f} | {wall / ways['1']:.3f} |" for way, wall in ways.items())
    verdicts = "\n".join(f"- {row['task']}, {row['share']} at once{', MPS' * (row['mps'] == '1')}: {row['verdict']}" for row in rows)
    return STUDY.format(**{key: rows[0][key] for key in ("study", "device", "cores", "torch", "jobs")}, times=times, verdicts=verdicts)


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.card:
        write(given.out / "results.csv", COLUMNS, [row for file in given.card for row in read(file)])
    else:
        measure(given)
    text = card(read(given.out / "results.csv"))
    put_between(MARK, END, text, given.out / "README.md")
    print(text)


def measure(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name, table(given.out / "results.csv", COLUMNS) as add:
        folder = Path(name)
        first = [word.split(",")[0] for word in words(given)]
        seconds(folder, *first, "study=warm", "trainer.max_steps=20")
        for share, by_mps in [(1, False), (given.share, False), *([(given.share, True)] if given.mps else [])]:
            for row in study(given, folder, share, by_mps=by_mps):
                add(row)


if __name__ == "__main__":
    main()
