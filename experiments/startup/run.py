"""How long do errors, --help and --cfg job take, relative to `import hydra`, and how long does a small run take, alone and in a sweep?

$ python experiments/startup/run.py            # prints the table and writes README.md beside this file
"""

import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hydra

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, markdown

ROUNDS = 9
COMMANDS = {
    "`import hydra` (the yardstick)": ["-c", "import hydra"],
    "`--help`": ["-m", "mpx.train", "--help"],
    "`--cfg job`": ["-m", "mpx.train", "--cfg", "job"],
    "unknown choice": ["-m", "mpx.train", "model=resnet21"],
    "unknown key": ["-m", "mpx.train", "optimizer.lrr=1"],
    "value out of range": ["-m", "mpx.train", "optimizer.lr=-1"],
    "impossible combination": ["-m", "mpx.train", "model=resnet18", "data=sst2"],
}

TINY = ["task=mlp_digits", "trainer.max_steps=5", "trainer.accelerator=cpu", "trainer.progress=off"]
RUN_ROUNDS, JOBS = 5, 5


def seconds(arguments: list[str], folder: str, *, check: bool = False) -> float:
    """The wall time of a command. check: raise where it fails, as a mistake in the settings is to."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=check)
    return time.perf_counter() - start


def runs() -> str:
    """The table of runs of five steps, alone and in a sweep."""
    alone, first, further = [], [], []
    for _ in range(RUN_ROUNDS):
        taken = []
        for arguments in (["seed=0"], ["-m", "seed=0"], ["-m", f"seed=range({JOBS})"]):
            with tempfile.TemporaryDirectory() as folder:
                taken.append(seconds(["-m", "mpx.train", *arguments, *TINY], folder, check=True))
        alone.append(taken[0])
        first.append(taken[1])
        further.append((taken[2] - taken[1]) / (JOBS - 1))
    rows = {"by itself": alone, "sweep of one job": first, "job of a sweep, after the first": further}
    least = statistics.median(further)
    lines = [[name, f"{statistics.median(t):.2f}", f"{statistics.median(t) / least:.1f}"] for name, t in rows.items()]
    return markdown(["five steps of `task=mlp_digits`", "median, s", "× a further job"], lines)


def main() -> None:
    Arguments().parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(ROUNDS + 1):
            for name, arguments in COMMANDS.items():
                taken = seconds(arguments, folder)
                if round_ > 0:  # the first round warms the disk cache
                    times[name].append(taken)
    yardstick = statistics.median(next(iter(times.values())))
    lines = [[name, f"{statistics.median(t):.3f}", f"{statistics.median(t) / yardstick:.1f}"] for name, t in times.items()]
    table = markdown(["command", "median, s", "× `import hydra`"], lines)
    text = (
        "# How fast is a mistake answered?\n\n"
        "**Question.** How long do `--help`, `--cfg job` and errors in the configuration take, relative to `import hydra`? "
        "The bound is 5.\n\n"
        f"**Setup.** {platform.processor() or platform.machine()}, Python {platform.python_version()}, hydra {hydra.__version__} "
        "with the joblib and submitit launchers, whose plugins Hydra looks for at every start; "
        f"times of whole processes, each command's median of {ROUNDS} rounds, in which the commands take turns. "
        f"The second table has {RUN_ROUNDS} rounds; a further job takes (a sweep of {JOBS} jobs − a sweep of one) ÷ {JOBS - 1}.\n\n"
        "**Command.** `python experiments/startup/run.py`\n\n" + table + "\n\n" + runs() + "\n\n"
        "**What we learnt.** Importing Lightning takes seconds, so heavy imports wait until the configuration has been checked "
        "(`tests/test_startup.py`). `--help` is the slowest, because Hydra's help pages read every file of every group. "
        "The jobs of a sweep are forks of a process that has imported everything (`mpx/sweep/warm.py`). They end without destroying the "
        "imported modules, which would take longer than five steps.\n"
    )
    Path(__file__).with_name("README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
