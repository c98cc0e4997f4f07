"""`python -m mpx.train -m …`: every job is a fresh process with its own plain command line, and a table at the end.

Hydra's launcher calls `start_child` once per job (basic, joblib and submitit launchers alike); the child leaves a small report in the
sweep's own folder, `outputs/<study>/_sweep/<process id>`, which `Summary` reads when all are done and removes when all went well.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from mpx.run.record import write_whole

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
    environment = os.environ | {REPORT: str(out), "HYDRA_FULL_ERROR": os.environ.get("MPX_TRACEBACK", "0")}
    at_once = config.launcher.get("n_jobs", 1)
    if at_once != 1:  # several jobs at once share the cores; more threads than cores make PyTorch on a CPU a hundred times slower
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // at_once) if at_once > 0 else 1))
    child = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()  # it was interrupted as well and is writing its record
        raise
    except SystemExit:
        child.terminate()
        child.wait()
        raise
    found = json.loads(out.read_text()) if out.is_file() else {"status": "failed", "folder": None, "line": _ended(code), "metrics": {}}
    write_whole(out, json.dumps(found | {"job": config.job.num, "code": code, "overrides": overrides}))
    if code:
        print(f"job {config.job.num} {found['status']}: {found['line']}", file=sys.stderr, flush=True)
    return code


def _config_dir(config: DictConfig) -> list[str]:
    added = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    return ["--config-dir", added[0]] if added else []


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code} before it wrote a record; its message is above"


class Summary(Callback):
    """Prints a table of all jobs after a sweep."""

    folder: Path | None = None  # of the sweep that this process started
    made: tuple[Path, ...] = ()  # it and those of its parents that were not there before
    failed = 0  # its jobs that did not complete

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        Summary.folder = Path(config.hydra.sweep.dir)
        Summary.made = tuple(path for path in (Summary.folder, *Summary.folder.parents[:3]) if not path.exists())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        reports = [json.loads(file.read_text()) for file in Summary.folder.glob("job*/report.json")]
        Summary.failed = sum(report["code"] != 0 for report in reports)
        from mpx.report.tables import print_sweep  # rich, only when there is something to print

        print_sweep(sorted(reports, key=lambda report: report["job"]))
        if not Summary.failed:
            shutil.rmtree(Summary.folder)


def finish() -> int:
    """The sweep's exit code: 1 if any job failed."""
    return 1 if Summary.failed else 0


def tidy() -> None:
    """Leave no empty folder behind, after a mistake that stopped the sweep before its first job or when all went well."""
    if Summary.folder is None or any(Summary.folder.glob("job*")):
        return
    (Summary.folder / "multirun.yaml").unlink(missing_ok=True)
    for path in (*Summary.made, Summary.folder.parent):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
