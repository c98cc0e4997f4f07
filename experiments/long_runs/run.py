"""Does a long run grow? Memory, open files, threads and event files over 100,000 steps, and of a sweep's processes over 1,000 jobs.

$ python experiments/long_runs/run.py                # writes results.csv and README.md; 20 minutes on two cores
$ python experiments/long_runs/run.py skipped        # that part anew; the rows of the others, steps and jobs, stay
$ python experiments/long_runs/run.py --minutes=10   # what is done by then
$ python experiments/long_runs/run.py --card         # README.md from the committed results.csv
"""

import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import linear_regression

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import ORIGIN, Arguments, markdown, read, said, write

HERE = Path(__file__).parent
STEPS, JOBS, SKIPPED, SAMPLES = 100_000, 100, 1_000, 100
TINY = ["model=mlp", "model.widths=[16]", "data.batch_size=16", "trainer.accelerator=cpu", "trainer.progress=off", "trainer.warmup_steps=0"]
LONG = [*TINY, "trainer.max_epochs=100000"]
JOB = [*TINY, "trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
BATCHES = "hydra.sweeper.max_batch_size=50"  # Hydra composes the configurations of a batch before its first job: of 1,000 for minutes
COLUMNS = ("process", "done", "seconds", "rss_mib", "files", "threads", "event_files", "event_kib", "cores", "python")
SKIPS = ", skipping"  # added to the names of the processes of the sweep whose jobs are finished already
WARM = 0.1  # share of the samples that are not looked at: the first steps and jobs fill caches
CARD = """# Does a long run leak memory, files or threads?

**Question.** Do memory, open files, threads and event files stay flat over 100,000 training steps, and those of a sweep's processes over
1,000 jobs?

**Setup.** {setup}. A multilayer perceptron with one hidden layer of 16 on `data=digits`, 16 samples a step, a
validation and a checkpoint every epoch. The jobs have two steps each. What a sweep's own processes keep does not depend on the length of a
job. So a second sweep has one job that trains, and {skipped:,} finished ones that it skips, in batches of 50. The processes are sampled
from outside, about {samples} times. Growth is the slope of a straight line through the samples after the first {warm:.0%}.

**Command.** `python experiments/long_runs/run.py`

{table}

**What we learnt.** A run keeps 8 bytes per step: its time, for the record's percentiles. Its events grow by {per_step:.0f} bytes per
step, in one file for each part of the run. Hydra would keep the configurations of all jobs of a sweep, 147 KiB per job; mpx drops them
(`mpx/sweep/summary.py`). After each job, the sweep reads the reports of all jobs. As one list they took 6 KiB of memory per job, so it
reads them one at a time (`mpx/sweep/job_report.py`). Each job leaves {per_job:.1f} KiB in the sweep's process, and {per_fork:.1f} in the
process that forks the jobs. `tests/test_long_runs.py` bounds the growth over 1,600 steps and 20 jobs.

**Limits.** The committed rows end at {steps:,} steps, {jobs:,} jobs that train and {skips:,} that are skipped.
"""


def watch(command: list[str], folder: Path, every: int, done: Callable[[Path], int], minutes: float = math.inf) -> Iterator[dict]:
    """Run `python -m mpx.train *command` in `folder`, and sample it and its child, if it has one, whenever `every` more are `done`.

    Ends it after `minutes`. Raises SystemExit if it fails.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(folder / "printed", "w+") as printed:
        run = subprocess.Popen([sys.executable, "-m", "mpx.train", *command], cwd=folder, env=environment, stdout=printed, stderr=printed)
        began, due = time.monotonic(), every
        while run.poll() is None:
            time.sleep(0.05)
            if time.monotonic() > began + 60 * minutes:
                run.terminate()
                run.wait()
                return
            if (now := done(folder)) >= due:
                due = now - now % every + every
                for process, pid in processes(run.pid).items():
                    yield {"process": process, "done": now, "seconds": time.monotonic() - began} | sample(pid) | events(folder)
        if run.returncode:
            raise SystemExit((folder / "printed").read_text()[-2000:])


def processes(pid: int) -> dict[str, int]:
    """The run, or a sweep and the process that forks its jobs, by name."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {"sweep": pid, "starter": int(children[0])} if children else {"run": pid}


def sample(pid: int) -> dict:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return {"rss_mib": int(status["VmRSS"].split()[0]) / 1024, "files": files, "threads": int(status["Threads"])}


def events(folder: Path) -> dict:
    """How many event files a run has at most, and the size of all."""
    runs = [list(run.glob("events.*")) for run in folder.glob("outputs/*/*/seed*")]
    return {"event_files": max(map(len, runs)), "event_kib": sum(file.stat().st_size for run in runs for file in run) / 1024}


def steps(folder: Path) -> int:
    """The last step whose loss is logged."""
    for curves in folder.glob("outputs/*/*/*/curves.csv"):
        with open(curves, "rb") as file:
            file.seek(max(0, curves.stat().st_size - 400))
            rows = [line.decode().split(",") for line in file]
        return max((int(row[1]) for row in rows if row[0] == "train/loss"), default=0)
    return 0


def jobs(folder: Path) -> int:
    """The number of the job that runs."""
    return max((int(job.name.removeprefix("job")) for job in folder.glob("outputs/_sweep/*/job*")), default=0)


def finish(folder: Path, count: int) -> None:
    """Leave the finished runs of seeds 1 to `count`: one that is trained, and copies of its record."""
    subprocess.run([sys.executable, "-m", "mpx.train", *JOB, "seed=1"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (trained,) = folder.glob("outputs/*/*/seed1")
    for seed in range(2, count + 1):
        copy = trained.with_name(f"seed{seed}")
        copy.mkdir()
        for name in ("result.json", "config.yaml"):
            shutil.copy(trained / name, copy)


PARTS = {  # command, samples are so many steps or jobs apart, how many are done
    "steps": ([*LONG, f"trainer.max_steps={STEPS}"], STEPS // SAMPLES, steps),
    "jobs": (["-m", *JOB, f"seed=range({JOBS})"], JOBS // SAMPLES, jobs),
    "skipped": (["-m", *JOB, f"seed=range({SKIPPED + 1})", BATCHES], SKIPPED // SAMPLES, jobs),
}


def part_of(process: str) -> str:
    return "skipped" if process.endswith(SKIPS) else "steps" if process == "run" else "jobs"


def growth(rows: list[dict], process: str, column: str) -> float:
    """Of a column, for each step or job that is done."""
    found = [(float(row["done"]), float(row[column])) for row in rows if row["process"] == process]
    found = found[round(len(found) * WARM) :]
    return linear_regression(*zip(*found, strict=True)).slope


def measure(parts: Sequence[str], minutes: float) -> list[dict]:
    """All parts at a time: what is sampled does not depend on speed."""

    def one(name: str) -> list[dict]:
        with tempfile.TemporaryDirectory() as folder:
            if name == "skipped":
                finish(Path(folder), SKIPPED)
            rows = list(watch(PARTS[name][0], Path(folder), *PARTS[name][1:], minutes))
            return [row | {"process": f"{row['process']}{SKIPS}"} for row in rows] if name == "skipped" else rows

    here = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    with ThreadPoolExecutor() as together:
        return [row | here for rows in together.map(one, parts) for row in rows]


def growth_table(rows: list[dict]) -> str:
    heads = ["process", "done", "resident memory, MiB", "growth, KiB for 1,000", "open files", "threads", "event files of a run"]
    lines = []
    for process in dict.fromkeys(row["process"] for row in rows):
        found = [row for row in rows if row["process"] == process]
        first, last = found[round(len(found) * WARM)], found[-1]
        memory = f"{float(first['rss_mib']):.1f} to {float(last['rss_mib']):.1f}"
        most = [max(int(row[column]) for row in found) for column in ("files", "threads", "event_files")]
        done = f"{int(last['done']):,} {'steps' if process == 'run' else 'jobs'}"
        lines.append([process, done, memory, f"{growth(rows, process, 'rss_mib') * 1024 * 1000:.0f}", *most])
    return markdown(heads, lines)


def card(rows: list[dict]) -> str:
    reached = {process: max(int(row["done"]) for row in rows if row["process"] == process) for process in ("run", "sweep", f"sweep{SKIPS}")}
    bytes_per_step = growth(rows, "run", "event_kib") * 1024
    numbers = {"steps": reached["run"], "jobs": reached["sweep"], "skips": reached[f"sweep{SKIPS}"], "skipped": SKIPPED}
    numbers |= {"samples": SAMPLES, "warm": WARM, "per_step": bytes_per_step}
    numbers["per_job"] = growth(rows, f"sweep{SKIPS}", "rss_mib") * 1024
    numbers["per_fork"] = growth(rows, f"starter{SKIPS}", "rss_mib") * 1024
    setup = said(rows, "{cores} CPU cores, Python {python}, torch {torch}")
    return CARD.format(setup=setup, table=growth_table(rows), **numbers)


def main() -> None:
    parser = Arguments()
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--card", action="store_true")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"{min(unknown)} is not one of {', '.join(PARTS)}")
    if not asked.card:
        parts = asked.parts or list(PARTS)
        kept = [dict.fromkeys(ORIGIN, "") | row for row in read(HERE / "results.csv") if part_of(row["process"]) not in parts]
        write(HERE / "results.csv", COLUMNS, [*kept, *measure(parts, asked.minutes)])
    (HERE / "README.md").write_text(card(read(HERE / "results.csv")))


if __name__ == "__main__":
    main()
