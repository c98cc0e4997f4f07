"""One job of a sweep: a fresh process with its own plain command line, started where the launcher put it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mpx.run.record import write_whole
from mpx.sweep.gpus import VISIBLE, claimed, visible_gpus
from mpx.sweep.job_report import FILE, REPORT


def start_child(cfg: DictConfig) -> int:
    """Run this job of the sweep as its own process and return its exit code; never raises, so that the other jobs go on."""
    config = HydraConfig.get()
    overrides = list(config.overrides.task)
    out = Path(config.runtime.output_dir).resolve() / FILE
    print(f"job {config.job.num}: {' '.join(overrides)}", flush=True)
    with _environment(cfg, config, out) as environment:
        code = _run([sys.executable, "-m", "mpx.train", *_config_dir(config), *overrides], environment)
    found = json.loads(out.read_text()) if out.is_file() else {"status": "failed", "folder": None, "line": _ended(code), "metrics": {}}
    write_whole(out, json.dumps(found | {"job": config.job.num, "code": code, "overrides": overrides}))
    if code:
        print(f"job {config.job.num} {found['status']}: {found['line']}", file=sys.stderr, flush=True)
    return code


@contextmanager
def _environment(cfg: DictConfig, config: DictConfig, out: Path) -> Iterator[dict[str, str]]:
    """The environment variables of the child. Jobs that run at the same time share the cores and the GPUs."""
    environment = os.environ | {REPORT: str(out), "HYDRA_FULL_ERROR": os.environ.get("MPX_TRACEBACK", "0")}
    at_once = config.launcher.get("n_jobs", 1)
    if at_once == 1:
        yield environment
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # more threads than cores make PyTorch on a CPU a hundred times slower
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // at_once) if at_once > 0 else 1))
    gpus = visible_gpus() if one_device(cfg) else []
    if len(gpus) < 2:
        yield environment
        return
    with claimed(out.parent.parent / "gpus", config.job.num, gpus) as gpu:
        yield environment | {VISIBLE: gpu}


def one_device(cfg: DictConfig) -> bool:
    """Whether a job is content with any one GPU; `trainer.devices=auto` is, beside others."""
    return cfg.trainer.accelerator != "cpu" and cfg.trainer.devices in (1, "auto")


def _run(command: list[str], environment: dict[str, str]) -> int:
    child = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()  # it was interrupted as well and is writing its record
        raise
    except SystemExit:
        child.terminate()
        child.wait()
        raise


def _config_dir(config: DictConfig) -> list[str]:
    added = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    return ["--config-dir", added[0]] if added else []


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code} before it wrote a record; its message is above"
