"""Run one setting and record how it ended, whatever happens: completed, diverged, failed or interrupted."""

import copy
import os
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mpx import sweep
from mpx.errors import Diverged, UserError
from mpx.runs import folder as folders
from mpx.runs import signals
from mpx.runs.name import NAMED, choices, comparable, differences, setting_name
from mpx.runs.record import UNKNOWN, write_result

RUN_FOLDER = "MPX_RUN_FOLDER"  # environment variable: tells the other processes of a DDP run where rank 0 writes
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # what gloo and NCCL say when a process is gone
EXIT = {"completed": 0, "failed": 1, "diverged": 3, "interrupted": 130}


def run_and_record(cfg: DictConfig) -> int:
    """Claim the run's folder, train, and leave a result.json there. Returns the exit code.

    Raises UserError for a mistake found before training begins, which leaves no folder.
    """
    if int(os.environ.get("LOCAL_RANK", 0)) > 0:
        return _follow(cfg)
    flat, chosen = comparable(cfg), choices()
    name = setting_name(chosen, changed := differences(cfg))
    setting = {group: chosen[group] for group in NAMED} | changed | {"seed": cfg.seed}
    record = {"status": "failed", "setting": setting, "config": OmegaConf.to_container(cfg, resolve=True)}
    record |= copy.deepcopy(UNKNOWN) | {"environment": {"started_at": datetime.now(UTC).isoformat(timespec="seconds")}}
    config = OmegaConf.to_yaml(OmegaConf.create({"comparable": flat, "trial": name, "config": record["config"]}))
    if_exists = "resume" if cfg.retry_failed else cfg.if_exists
    folder = folders.claim(
        Path(cfg.output_dir) / cfg.study / name, cfg.seed, if_exists, flat, in_sweep=sweep.in_sweep(), ckpt_path=cfg.ckpt_path
    )
    if folder.finished is not None:
        return _already_there(folder)
    if sweep.in_sweep():
        sweep.end_with_parent(int(os.environ[sweep.PARENT]))
    os.environ[RUN_FOLDER] = f"{folder.path}\n{folder.resume_from or ''}"
    signals.stop_once()
    return _guarded(cfg, folder, record, config, name)


def _guarded(cfg: DictConfig, folder: folders.Folder, record: dict[str, Any], config: str, trial: str) -> int:
    """Train with `record` filled in on the way, and write it however the training ends. config: the text of config.yaml.

    Raises UserError for a mistake found before training begins; like an interruption so early, it leaves everything as it was.
    """
    line, code = "", None
    try:
        with signals.held():
            from mpx.training.fit import fit  # torch, Lightning and all: only once the configuration is known to be good

        fit(cfg, folder, record, trial=trial, config=config)
        record["status"] = "completed"
    except (KeyboardInterrupt, SystemExit) as error:
        record["status"], code = "interrupted", 143 if error.args == (143,) else None
        line = f"interrupted; the same command {'' if sweep.in_sweep() else 'with if_exists=resume '}continues it"
        if not folder.begun:
            line = "interrupted before training began; nothing was changed"
    except Exception as error:
        if isinstance(error, UserError) and not folder.begun:
            folder.abandon()
            raise
        record["status"] = "diverged" if isinstance(error, Diverged) else "failed"
        line = _line_for(error, cfg, folder.path)
    if line:
        record["error"] = line
        print(f"error: {line}" if record["status"] != "interrupted" else line, file=sys.stderr)
    if kept := folder.begun or (bool(folder.made) and record["status"] == "failed"):  # the record of a bug helps to find it
        if not _write(folder.path, record) and record["status"] == "completed":
            code = EXIT["failed"]
        folder.lock.release()
    else:
        folder.abandon()
    sweep.report(record["status"], folder.path if kept else None, line, _told(record))
    return EXIT[record["status"]] if code is None else code


def _told(record: dict[str, Any]) -> dict[str, Any]:
    """What a sweep's table needs of a run's record."""
    told = {name: record.get(name, {}) for name in ("metrics", "speed")}
    return told | {"emulated": record.get("precision", {}).get("emulated")}


def _line_for(error: Exception, cfg: DictConfig, path: Path) -> str:
    from mpx.runs.explain import explain

    line = explain(error, cfg, path)
    if line is None or os.environ.get("MPX_TRACEBACK") == "1":
        traceback.print_exception(error)
    return line or f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _write(path: Path, record: dict[str, Any]) -> bool:
    """Whether the record could be written."""
    try:
        write_result(path, record)
    except OSError as error:
        print(f"error: {path / folders.RESULT} could not be written ({error.strerror}).", file=sys.stderr)
        return False
    return True


def _already_there(folder: folders.Folder) -> int:
    status, error = folder.finished["status"], f"{str(folder.finished.get('error')).rstrip('.')}."
    line = f"{folder.path} is already {status}; nothing to do. if_exists=overwrite repeats it, if_exists=new runs it beside."
    if status == "failed":
        again = "retry_failed=true" if sweep.in_sweep() else "if_exists=resume"
        line = f"{folder.path} failed earlier: {error} {again} tries it again."
    if status == "diverged" and sweep.in_sweep():
        line = f"{folder.path} diverged earlier: {error} if_exists=overwrite repeats it."
    print(line)
    sweep.report(status, folder.path, line, _told(folder.finished), skipped=True)
    if sweep.in_sweep():
        return EXIT[status]  # a sweep that is started again says of each job what it said before
    return 0 if status in folders.DONE else EXIT["failed"]


def _follow(cfg: DictConfig) -> int:
    """A further process of a distributed run: trains in step with rank 0, writes nothing."""
    if RUN_FOLDER not in os.environ:
        raise UserError("LOCAL_RANK is set, but mpx did not start this process. Start one process; trainer.devices starts the others.")
    path, resume = os.environ[RUN_FOLDER].split("\n")
    from mpx.training.fit import fit

    record = {"environment": {}, "config": OmegaConf.to_container(cfg, resolve=True)}
    try:
        fit(cfg, folders.Folder(Path(path), resume_from=Path(resume) if resume else None), record, trial="", config="")
    except Diverged:
        return EXIT["diverged"]  # all processes stop at once, and rank 0 says why
    except RuntimeError as error:
        if not any(words in str(error) for words in LOST):
            raise
        print(f"process {os.environ['LOCAL_RANK']} of this run stops, since another one did", file=sys.stderr)
        return EXIT["failed"]
    return 0
