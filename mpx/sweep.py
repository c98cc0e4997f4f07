"""`python -m mpx.train -m …`: every job is a fresh process with its own plain command line, and a table at the end.

Hydra's launcher calls `start_child` once per job (basic, joblib and submitit launchers alike); the child leaves a small report in the
sweep's folder, which `Summary` reads when all are done.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

REPORT = "MPX_SWEEP_REPORT"  # environment variable: the file in which a job of a sweep says how it ended


def in_sweep() -> bool:
    return REPORT in os.environ


def report(status: str, folder: Path | None, line: str, metrics: dict[str, Any] | None = None) -> None:
    """Called by a job: tell the sweep, if there is one, how this run ended."""
    if in_sweep():
        Path(os.environ[REPORT]).write_text(
            json.dumps({"status": status, "folder": str(folder) if folder else None, "line": line, "metrics": metrics or {}})
        )


def start_child() -> int:
    """Run this job of the sweep as its own process and return its exit code; never raises, so that the other jobs go on."""
    config = HydraConfig.get()
    overrides = list(config.overrides.task)
    out = Path(config.runtime.output_dir).resolve() / "report.json"
    command = [sys.executable, "-m", "mpx.train", *_config_dir(config), *overrides]
    print(f"job {config.job.num}: {' '.join(overrides)}", flush=True)
    child = subprocess.Popen(command, env=os.environ | {REPORT: str(out), "HYDRA_FULL_ERROR": os.environ.get("MPX_TRACEBACK", "0")})
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()  # it was interrupted as well and is writing its record
        raise
    found = json.loads(out.read_text()) if out.is_file() else {"status": "failed", "folder": None, "line": _ended(code), "metrics": {}}
    out.write_text(json.dumps(found | {"job": config.job.num, "code": code, "overrides": overrides}))
    if code:
        print(f"job {config.job.num} {found['status']}: {found['line']}", file=sys.stderr, flush=True)
    return code


def _config_dir(config: DictConfig) -> list[str]:
    added = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    return ["--config-dir", added[0]] if added else []


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code} before it wrote a record; its message is above"


class Summary(Callback):
    """Clears old reports before a sweep and prints a table of all jobs after it."""

    folder: Path | None = None  # of the sweep that this process started
    failed = 0  # its jobs that did not complete

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        Summary.folder = Path(config.hydra.sweep.dir)
        for old in Summary.folder.glob("job*/report.json"):
            old.unlink()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        reports = [json.loads(file.read_text()) for file in Summary.folder.glob("job*/report.json")]
        Summary.failed = sum(report["code"] != 0 for report in reports)
        from mpx.report.tables import print_sweep  # rich, only when there is something to print

        print_sweep(sorted(reports, key=lambda report: report["job"]))


def finish() -> int:
    """The sweep's exit code: 1 if any job failed."""
    return 1 if Summary.failed else 0


def tidy() -> None:
    """After a mistake that stopped the sweep before its first job: leave no folder behind."""
    if Summary.folder is None or any(Summary.folder.glob("job*")):
        return
    (Summary.folder / "multirun.yaml").unlink(missing_ok=True)
    for path in (Summary.folder, *Summary.folder.parents[:2]):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
