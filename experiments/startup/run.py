"""How long do errors, --help and --cfg job take, relative to `import hydra`, and how long does a small run take, alone and in a sweep?

$ python experiments/startup/run.py            # writes results.csv and README.md (about four minutes on an idle machine)
$ python experiments/startup/run.py --card     # README.md from the committed results.csv
"""

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import hydra

sys.path.append(str(Path(__file__).parents[1]))
from collecting import markdown, measured, said

HERE = Path(__file__).parent
COLUMNS = ("command", "round", "seconds", "python", "hydra")
BOUND, ROUNDS = 5, 9
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
RUNS = {"by itself": ["seed=0"], "sweep of one job": ["-m", "seed=0"], f"sweep of {JOBS} jobs": ["-m", f"seed=range({JOBS})"]}
CARD = """# How fast is a mistake answered?

**Question.** How long do `--help`, `--cfg job` and errors in the configuration take, relative to `import hydra`? The bound is {bound}.

**Setup.** {setup}, on {day}. Hydra has the joblib and submitit launchers, whose
plugins it looks for at every start. Times are those of whole processes, each command's median of {rounds} rounds, in which the commands
take turns. The second table has {run_rounds} rounds; a further job takes (a sweep of {jobs} jobs − a sweep of one) ÷ {further}.

**Command.** `python experiments/startup/run.py`

{commands}

{verdict}

{runs}

**What we learnt.** Importing Lightning takes seconds, so heavy imports wait until the configuration has been checked
(`tests/test_startup.py`). `--help` is the slowest, because Hydra copies all that it knows of configurations once for each group.
The jobs of a sweep are forks of a process that has imported everything (`mpx/sweep/warm.py`). They end without destroying the imported
modules, which would take longer than five steps.
"""


def seconds(arguments: list[str], folder: str, *, check: bool = False) -> float:
    """The wall time of a command. check: raise where it fails, as a mistake in the settings is to."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=check)
    return time.perf_counter() - start


def measure() -> Iterator[dict]:
    """A row per command and round. The first round of the commands warms the disk cache."""
    versions = {"python": platform.python_version(), "hydra": hydra.__version__}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS + 1):
            for name, arguments in COMMANDS.items():
                taken = seconds(arguments, folder)
                if number > 0:
                    yield versions | {"command": name, "round": number, "seconds": taken}
    for number in range(1, RUN_ROUNDS + 1):
        for name, arguments in RUNS.items():
            with tempfile.TemporaryDirectory() as folder:
                taken = seconds(["-m", "mpx.train", *arguments, *TINY], folder, check=True)
            yield versions | {"command": name, "round": number, "seconds": taken}


def card(rows: list[dict[str, str]]) -> str:
    times = {name: [float(row["seconds"]) for row in rows if row["command"] == name] for name in (*COMMANDS, *RUNS)}
    alone, first, several = (times[name] for name in RUNS)
    further = [(many - one) / (JOBS - 1) for one, many in zip(first, several, strict=True)]
    runs = {"by itself": alone, "sweep of one job": first, "job of a sweep, after the first": further}
    yardstick, least = median(times[next(iter(COMMANDS))]), median(further)
    ratios = {name: median(times[name]) / yardstick for name in COMMANDS}
    above = [f"{name} takes {ratio:.1f} × as long" for name, ratio in ratios.items() if ratio > BOUND]
    verdict = f"**Not within the bound:** {', '.join(above)}." if above else "All are within the bound."
    return CARD.format(
        setup=said(rows, "{host}, Python {python}, hydra {hydra}"), day=rows[0]["time"][:10],
        bound=BOUND, verdict=verdict, rounds=ROUNDS, run_rounds=RUN_ROUNDS, jobs=JOBS, further=JOBS - 1,
        commands=markdown(
            ["command", "median, s", "× `import hydra`"],
            [[name, f"{median(times[name]):.3f}", f"{ratio:.1f}"] for name, ratio in ratios.items()],
        ),
        runs=markdown(
            ["five steps of `task=mlp_digits`", "median, s", "× a further job"],
            [[name, f"{median(t):.2f}", f"{median(t) / least:.1f}"] for name, t in runs.items()],
        ),
    )  # fmt: skip


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
