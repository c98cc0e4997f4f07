"""Run one setting and record how it ends: completed, diverged, failed or interrupted."""

import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mpx import sweep
from mpx.errors import DISK_FULL, MISTAKE, PIPE_CLOSED, Diverged, InUse, UserError, causes
from mpx.runs import folder as folders
from mpx.runs import signals
from mpx.runs.folder import Folder
from mpx.runs.inputs import changed, refuse_others
from mpx.runs.name import Description, describe
from mpx.runs.result import EXIT, line_of, write_result
from mpx.system.environment_variables import shows_traceback
from mpx.system.launch import TORCHRUN, Launch, hear, hear_failure, launch, tell, tell_failure
from mpx.system.machine import heavy
from mpx.system.printing import print_nowhere

GRACE = 10.0  # seconds in which rank 0 says why the run ends
LOST = (  # gloo's and NCCL's words for a process that is gone
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)
UNUSED = "parameters that were not used in producing the loss"  # Lightning's words


@dataclass(frozen=True)
class Ending:
    status: str
    code: int  # exit code
    line: str = ""  # what the user reads; empty for a completed run
    bug: Exception | None = None  # an error that no line explains


def run_and_record(cfg: DictConfig) -> int:
    """Claim the run's folder, train, and leave a result.json there. Returns the exit code.

    Raises UserError for a mistake found before training begins, which leaves no folder.
    """
    started = launch()
    if started.rank > 0:
        return _follow(cfg, started)
    try:
        described = describe(cfg)
        folder = _claim(cfg, described)
    except BaseException as error:
        tell(started, None)
        if not isinstance(error, InUse) or not sweep.in_sweep():
            raise
        return _leave_to_the_other(error)
    if folder.finished is not None:
        tell(started, None)
        return _leave_as_it_is(folder.path, folder.finished)
    _begin(started)
    tell(started, folder.path, folder.resume_from)
    ending = _train(cfg, folder, described)
    signals.run.finish()
    return _conclude(folder, described.record, ending)


def _follow(cfg: DictConfig, started: Launch) -> int:
    """Train in step with rank 0, which writes the record."""
    _begin(started)
    with signals.held(), heavy():
        paths = hear(started)
    if not paths:
        return 0
    ending = _train(
        cfg, Folder(paths[0], resume_from=paths[1] if paths[1:] else None, begun=True), describe(cfg)
    )
    signals.run.finish()
    if ending.bug is not None:
        traceback.print_exception(ending.bug)
        tell_failure(started, ending.line)
    # Rank 0 may have found the same, and would be ended before it says so.
    if ending.status in ("failed", "diverged"):
        time.sleep(GRACE)
    return ending.code


def _begin(started: Launch) -> None:
    signals.begin()
    if sweep.in_sweep() or started.by == TORCHRUN:
        signals.end_with_parent()


def _claim(cfg: DictConfig, described: Description) -> Folder:
    """The data of a run that continues are checked later, against its checkpoint: the user may let it
    continue on others."""
    setting_dir = Path(cfg.output_dir) / cfg.study / described.trial
    folder = folders.claim(
        setting_dir,
        cfg.seed,
        "resume" if cfg.retry_failed else cfg.if_exists,
        described.comparable,
        in_sweep=sweep.in_sweep(),
        ckpt_path=cfg.ckpt_path,
    )
    contents = described.record["data"]["contents"]
    if contents is not None and folder.resume_from is None and not folder.replaces:
        try:
            refuse_others(setting_dir, cfg.data, contents)
        except UserError:
            if folder.finished is None:
                folder.abandon()
            raise
    for name in changed(folder.path, described.record["inputs"]) if not folder.replaces else ():
        done = (
            "its result is of the earlier one. if_exists=overwrite repeats it"
            if folder.finished
            else "it goes on with the present one"
        )
        print(f"{name} has changed since {folder.path} began: {done}.", file=sys.stderr)
    return folder


def _train(cfg: DictConfig, folder: Folder, described: Description) -> Ending:
    """Raises UserError for a mistake found before training begins."""
    try:
        with signals.held(), heavy():
            # Torch and Lightning, which take seconds: only once the configuration is known to be good.
            from mpx.training.fit import fit

        fit(cfg, folder, described.record, trial=described.trial, config=described.config)
    except (KeyboardInterrupt, SystemExit) as error:
        code = signals.TERMINATED if error.args == (signals.TERMINATED,) else EXIT["interrupted"]
        return Ending("interrupted", code, _interrupted(folder, described.record))
    except BrokenPipeError:
        print_nowhere()
        return Ending("interrupted", PIPE_CLOSED, _interrupted(folder, described.record))
    except Exception as error:
        if isinstance(error, UserError) and not folder.begun:
            folder.abandon()
            raise
        # A signal can also have ended a data loader's worker or another process of the run, which this one
        # needs.
        if isinstance(error, RuntimeError) and (
            signals.run.first is not None or any(words in str(error) for words in LOST)
        ):
            if (failure := hear_failure()) is not None:
                return Ending("failed", EXIT["failed"], failure)
            return Ending("interrupted", signals.TERMINATED, _interrupted(folder, described.record))
        status = "diverged" if isinstance(error, Diverged) else "failed"
        line = explain(error, cfg, folder.path)
        bug = error if line is None or shows_traceback() else None
        return Ending(status, EXIT[status], line or line_of(error), bug)
    return Ending("completed", EXIT["completed"])


def explain(error: BaseException, cfg: DictConfig, folder: Path) -> str | None:
    """What went wrong and what to do about it, in one line; None for a bug, whose traceback the user should
    see.
    """
    if isinstance(error, (UserError, Diverged)):
        return str(error)
    from mpx.measure.memory import out_of_memory  # torch

    if out_of_memory(error):
        # a project's data have their own key
        batch = f"data.batch_size={cfg.data.batch_size}" if "data" in cfg else "this batch size"
        return (
            f"out of memory with {batch}: lower it (trainer.accumulate_grad_batches keeps the effective "
            "batch), use precision=amp or amp_bf16, or a smaller model."
        )
    if isinstance(error, RuntimeError) and UNUSED in str(error):
        return (
            "several devices cannot train parameters that take no part in the loss of a step, as some of "
            "this model do. Freeze them "
            "(requires_grad_(False)), or use trainer.devices=1."
        )
    if any(isinstance(e, OSError) and e.errno in DISK_FULL for e in causes(error)):
        again = "retry_failed=true" if sweep.in_sweep() else "if_exists=resume"
        return (
            f"the disk that holds {folder} is full. Free some space and repeat with {again}, or choose "
            "another: output_dir=DIR."
        )
    if isinstance(error, OSError) and error.filename is not None:
        ours = folder.absolute() in Path(error.filename).absolute().parents
        if ours or isinstance(error, PermissionError):
            where = "Choose another folder with output_dir=DIR." if ours else "Allow it, or name another."
            return f"{error.filename} cannot be used ({error.strerror}). {where}"
    return None


def _interrupted(folder: Folder, record: dict[str, Any]) -> str:
    if not folder.begun:
        return "interrupted before training began; nothing was changed"
    instead = " in place of ckpt_path" if record["config"]["ckpt_path"] is not None else ""
    return (
        "interrupted; the same command "
        f"{'' if sweep.in_sweep() else f'with if_exists=resume{instead} '}continues it"
    )


def _conclude(folder: Folder, record: dict[str, Any], ending: Ending) -> int:
    """Write the record, tell user and sweep, and release the folder."""
    record["status"], code = ending.status, ending.code
    if ending.bug is not None:
        traceback.print_exception(ending.bug)
    if ending.line:
        record["error"] = ending.line
        print(ending.line if ending.status == "interrupted" else f"error: {ending.line}", file=sys.stderr)
    # The record of a bug helps to find it.
    kept = folder.begun or (bool(folder.made) and ending.status == "failed")
    if kept:
        try:
            write_result(folder.path, record)
        except OSError as error:
            path = folder.path / folders.RESULT
            print(f"error: {path} could not be written ({error.strerror}).", file=sys.stderr)
            code = code or EXIT["failed"]
        folder.release()
    else:
        folder.abandon()
    sweep.report(ending.status, folder.path if kept else None, ending.line)
    return code


def _leave_as_it_is(path: Path, finished: dict[str, Any]) -> int:
    """The run is already there: say how it ended and what repeats it."""
    status = finished["status"]
    if status == "completed" or (status == "diverged" and not sweep.in_sweep()):
        line = (
            f"{path} is already {status}; nothing to do. if_exists=overwrite repeats it, if_exists=new "
            "starts another beside it."
        )
    else:
        again = "if_exists=overwrite repeats it"
        if status == "failed":
            again = f"{'retry_failed=true' if sweep.in_sweep() else 'if_exists=resume'} tries it again"
        line = f"{path} {status} earlier: {str(finished.get('error')).rstrip('.')}. {again}."
    print(line)
    sweep.report(status, path, line, skipped=True)
    if sweep.in_sweep():
        return EXIT[status]  # a repeated sweep says of each job what it said before
    return 0 if status in folders.DONE else EXIT["failed"]


def _leave_to_the_other(error: InUse) -> int:
    """Another sweep trains this run: the sweep goes on with its other jobs."""
    sweep.report(
        sweep.IN_USE,
        None,
        f"{str(error).split('. ')[0]}. The same command takes its result once it has finished.",
        skipped=True,
    )
    return MISTAKE
