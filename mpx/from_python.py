"""mpx.run and mpx.judge: what `python -m mpx.train` and `python -m mpx.compare` do, called from Python or a
notebook."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpx.compare.comparison import Comparison
from mpx.errors import UserError
from mpx.runs.folder import DONE, read_result
from mpx.settings.choices import KEYS
from mpx.settings.compare import LISTING, USUAL, check_compare
from mpx.settings.front_door import checked_words
from mpx.settings.project import with_project
from mpx.system.environment_variables import RUN_REPORT, for_run
from mpx.system.launch import this_python


class RunRecord(dict[str, Any]):
    """The content of result.json. folder: where it was written."""

    def __init__(self, record: dict[str, Any], folder: Path):
        super().__init__(record)
        self.folder = folder


def run(settings: Sequence[str] = ()) -> RunRecord:
    """Train, test and record one setting, and return its record. It is a process of its own, whose output is
    shown.

        for seed in range(3):
            record = mpx.run(["precision=amp", f"seed={seed}"])
            print(record["metrics"]["test/accuracy"], record.folder)

    settings: KEY=VALUE words, as on the command line. Returns result.json as a dict (docs/run-folder.md lists
    its fields); `record.folder` is the run's folder. It also returns a run that diverged, because that is a
    result, and a finished run that `if_exists=skip` finds. Raises UserError with one line for a mistake and
    for a run that failed, and KeyboardInterrupt after Ctrl-C. Once training has begun, result.json is written
    in each of these cases.
    """
    words = _words(settings)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        code = _shown([*this_python(), "mpx.train", *words], for_run(RUN_REPORT, file))
        report = (
            json.loads(file.read_text())
            if file.is_file()
            else {"status": "failed", "folder": None, "line": ""}
        )
    path = Path(report["folder"] or "")
    if report["status"] in DONE and (record := read_result(path)) is not None:
        return RunRecord(record, path)
    if report["status"] == "interrupted":
        raise KeyboardInterrupt
    raise UserError(
        report["line"]
        or f"python -m mpx.train {shlex.join(words)} ended with exit code {code}, without a record."
    )


def judge(study: str = "default", **settings: Any) -> Comparison:
    """Compare the runs of a study as `python -m mpx.compare` does: print tables and verdicts, write the
    report, return the comparison.

        comparison = mpx.judge("default", margin=0.005)
        print(comparison.groups[0].train_verdict)

    study: the name that the runs were trained under (study=). settings: control, metric, metric_goal, margin,
    margin_is, margin_for, confidence, results, output_dir; `python -m mpx.compare --help` explains
    them. Returns a Comparison; each of its `groups` is one model and data set, with `rows` (one per setting,
    the control first), `train_verdict` and `serve_verdict`. Raises UserError for a mistake.
    """
    from mpx.compare.__main__ import run as compare

    if key := next((key for key in settings if key in LISTING), None):
        raise UserError(f"{key} is not a setting of mpx.judge, which compares. mpx.list_runs lists the runs.")
    given = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in (USUAL | {"study": study} | settings).items()
    }
    check_compare(given, [f"{key}=" for key in settings])
    return compare(**given)


def _words(settings: Sequence[str]) -> list[str]:
    """Raises UserError for anything but a list of settings."""
    if isinstance(settings, str) or not all(isinstance(word, str) for word in settings):
        raise UserError(
            f'mpx.run({settings!r}): give a list of settings. For example mpx.run(["precision=amp", '
            '"seed=1"]).'
        )
    if (option := next((word for word in settings if word.startswith("-")), None)) is not None:
        way = (
            "Call mpx.run in a loop, or start python -m mpx.train -m …"
            if option in ("-m", "--multirun")
            else "Leave it out"
        )
        raise UserError(f"{option}: mpx.run trains one setting, and takes no options. {way}.")
    return with_project(checked_words(settings, KEYS, "mpx.train"))


def _shown(command: list[str], environment: dict[str, str]) -> int:
    """Run a command that finds the modules which this program finds, and print what it prints. Returns its
    exit code.

    A notebook shows what Python prints, and not what another process does.
    """
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        command, env=os.environ | environment | path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace", start_new_session=True,
    )  # fmt: skip
    with process:
        while process.stdout is not None:
            try:
                if not (line := process.stdout.readline()):
                    break
                print(line, end="", flush=True)
            except KeyboardInterrupt:  # the run saves, and says so
                process.send_signal(signal.SIGINT)
    return process.returncode
