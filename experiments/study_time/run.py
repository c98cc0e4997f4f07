"""How long does a study take one job after another, and with several jobs on the GPU? And is the verdict the same?

$ python experiments/study_time/run.py                          # results.csv and README.md beside this file; under ten minutes on an H100
$ python experiments/study_time/run.py --share 4 --seeds 3      # less; also --tasks, --precisions, --epochs
$ python experiments/study_time/run.py --root DIR --tasks lstm_sst2,resnet20_cifar10   # on data with files
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from collecting import read, table

from mpx.compare.aggregate import compare
from mpx.compare.collect import collect
from mpx.compare.comparison import Group
from mpx.compare.verdict import fastest_to_train

COLUMNS = (
    "share", "wall_s", "jobs", "task", "outcome", "fastest", "speedup", "speedup_low", "speedup_high", "accuracy_difference", "verdict",
    "device", "cores", "torch",
)  # fmt: skip
CARD = """# How long does a study take?

**Question.** `gpu_share=K` runs K jobs of a study beside one another on a GPU, and measures each setting's speed alone at the end. Does the
study take at most half of the time, with the same verdict?

**Setup.** {device}, {cores} CPU cores, torch {torch}. `experiment=precision_grid` for {tasks}: {jobs} runs. A run that is not counted comes
first, because it fills the caches.

**Command.** `python experiments/study_time/run.py`

| jobs at once on the GPU | wall time, s | share of the time one by one |
|---|---|---|
{times}

{verdicts}
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="lstm_digits,resnet20_digits")
    parser.add_argument("--precisions", default="fp32,tf32,amp,amp_bf16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="instead of the tasks' own")
    parser.add_argument("--share", type=int, default=8, help="jobs at once on the GPU")
    parser.add_argument("--root", help="folder of the data sets that have files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for results.csv and README.md")
    return parser.parse_args()


def words(given: argparse.Namespace) -> list[str]:
    """The study, without its name and gpu_share."""
    seeds = ",".join(map(str, range(given.seeds)))
    found = ["experiment=precision_grid", f"task={given.tasks}", f"precision={given.precisions}", f"seed={seeds}"]
    found += [f"trainer.max_epochs={given.epochs}"] if given.epochs else []
    return found + ([f"data.root={Path(given.root).resolve()}"] if given.root else [])


def seconds(folder: Path, *command: str) -> float:
    """The wall time of a command of mpx.train."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "mpx.train", *command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.stderr.decode()[-2000:])
    return time.perf_counter() - start


def study(given: argparse.Namespace, folder: Path, share: int) -> list[dict]:
    """One row per task."""
    name = f"share{share}"
    wall = seconds(folder, "-m", *words(given), f"study={name}", f"gpu_share={share}")
    place = folder / "outputs" / name
    runs, left_out = collect(place)
    assert not left_out, left_out
    found = compare(runs, study=name, control="auto", metric="auto", margin=0.01, confidence=0.95, folder=place)
    environment = runs[0].environment
    about = {"device": runs[0].device, "cores": len(os.sched_getaffinity(0)), "torch": environment["torch"]}
    return [{"share": share, "wall_s": wall, "jobs": len(runs)} | verdict(group) | about for group in found.groups]


def verdict(group: Group) -> dict:
    """The verdict on one task."""
    answer = fastest_to_train(group, 0.95)
    row = {"task": f"{group.model}_{group.data}", "outcome": answer.outcome.name, "verdict": group.train_verdict}
    if answer.best is None:
        return row
    speedup, decision = answer.best.speedup, answer.best.decision
    row |= {"fastest": answer.best.setting, "accuracy_difference": decision.difference}
    return row | {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}


def card(rows: list[dict]) -> str:
    walls = {int(row["share"]): float(row["wall_s"]) for row in rows}
    times = "\n".join(f"| {share} | {wall:.0f} | {wall / walls[1]:.2f} |" for share, wall in walls.items())
    verdicts = "\n".join(f"- {row['task']}, {row['share']} at once: {row['verdict']}" for row in rows)
    tasks = " and ".join(dict.fromkeys(f"`{row['task']}`" for row in rows))
    return CARD.format(**{key: rows[0][key] for key in ("device", "cores", "torch", "jobs")}, tasks=tasks, times=times, verdicts=verdicts)


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = [word.split(",")[0] for word in words(given)]
        seconds(folder, *first, "study=warm", "trainer.max_steps=20")
        given.out.mkdir(parents=True, exist_ok=True)
        with table(given.out / "results.csv", COLUMNS) as add:
            for share in (1, given.share):
                for row in study(given, folder, share):
                    add(row)
    text = card(read(given.out / "results.csv"))
    (given.out / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
