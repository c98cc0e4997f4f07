"""Run one setting and record how it ends: completed, diverged, failed or interrupted."""

import copy
import sys
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mpx import channels, sweep
from mpx.errors import MISTAKE, Diverged, InUse, UserError
from mpx.launch import Launch, launch
from mpx.runs import folder as folders
from mpx.runs import ranks, signals, watch
from mpx.runs.contents import contents, refuse_others
from mpx.runs.folder import Folder
from mpx.runs.name import comparable, differences, named, setting_name
from mpx.runs.record import UNKNOWN, metric_name, write_result
from mpx.settings.project import is_project

EXIT = {"completed": 0, "failed": 1, "diverged": 3, "interrupted": 130}


@dataclass(frozen=True)
class Description:
    """What the command asks for."""

    trial: str  # the setting's name without the seed, which is also the name of its folder
    comparable: dict[str, Any]  # the settings that change the result, flat
    record: dict[str, Any]  # result.json of a run that did not get as far as training

    @property
    def config(self) -> str:
        """The text of config.yaml."""
        parts = {"comparable": self.comparable, "trial": self.trial} | {key: self.record[key] for key in ("config", "data")}
        return OmegaConf.to_yaml(OmegaConf.create(parts))


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
    with ranks.Others(started) as others:
        described = describe(cfg)
        try:
            folder = _claim(cfg, described)
        except InUse as error:
            if not sweep.in_sweep():
                raise
            return _leave_to_the_other(error)
        if folder.finished is not None:
            return _leave_as_it_is(folder)
        if sweep.in_sweep():
            sweep.end_with_parent(channels.parent_process())
        others.follow(folder.path, folder.resume_from)
    signals.stop_once()
    alone = cfg.trainer.devices == 1 and cfg.trainer.num_nodes == 1
    with nullcontext() if alone else watch.over_all(folder.path, partial(_conclude_for_another, folder, described.record)):
        ending = _train(cfg, folder, described)
    return _conclude(folder, described.record, ending)


def run_here(cfg: DictConfig, command: str) -> tuple[dict[str, Any], Path, Ending | None]:
    """As `run_and_record`, for a caller that goes on afterwards. command: what repeats the run on a command line.

    Returns the record, its folder, and how the run ended; None for a run that was finished already. Raises UserError also for one that had
    failed.
    """
    described = describe(cfg)
    described.record["environment"]["command"] = command
    folder = _claim(cfg, described)
    if folder.finished is not None:
        if folder.finished["status"] not in folders.DONE:
            raise UserError(f"{folder.path} failed earlier: {folder.finished.get('error')} if_exists=resume tries it again.")
        return folder.finished, folder.path, None
    signals.stop_once()
    with signals.held():
        from mpx.runs.library_state import library_state  # torch and Lightning, which take seconds

    with library_state():
        ending = _train(cfg, folder, described)
        _conclude(folder, described.record, ending, quiet=ending.status != "diverged")
    return folders.read_result(folder.path) or described.record, folder.path, ending


def describe(cfg: DictConfig) -> Description:
    """Raises UserError for a key that no choice has."""
    chosen, changed, config = named(cfg), differences(cfg), OmegaConf.to_container(cfg, resolve=True)
    record = {
        "status": "failed",
        "setting": chosen | changed | {"seed": cfg.seed},
        "config": config,
        "data": {"name": chosen["data"], "contents": None if is_project(cfg) else contents(config["data"])},
    }
    record |= {"label": cfg.label} if cfg.label is not None else {}
    if is_project(cfg):
        record["metric"] = None if cfg.metric is None else {"name": metric_name(cfg.metric), "goal": cfg.metric_goal}
        record["config"]["data"] = {}  # its batch size, once it is known
    record |= copy.deepcopy(UNKNOWN) | {"environment": {"started_at": datetime.now(UTC).isoformat(timespec="seconds")}}
    return Description(setting_name(chosen, changed), comparable(cfg), record)


def _claim(cfg: DictConfig, described: Description) -> Folder:
    """A run that continues checks its data itself, and may be told to continue on others."""
    setting_dir = Path(cfg.output_dir) / cfg.study / described.trial
    folder = folders.claim(
        setting_dir,
        cfg.seed,
        "resume" if cfg.retry_failed else cfg.if_exists,
        described.comparable,
        in_sweep=sweep.in_sweep(),
        ckpt_path=cfg.ckpt_path,
    )
    mine = described.record["data"]["contents"]
    if mine is not None and folder.resume_from is None and not folder.replaces:
        try:
            refuse_others(setting_dir, cfg.data, mine)
        except UserError:
            if folder.finished is None:
                folder.abandon()
            raise
    return folder


def _train(cfg: DictConfig, folder: Folder, described: Description) -> Ending:
    """Train, with the record filled in on the way. Raises UserError for a mistake found before training begins."""
    try:
        with signals.held():
            from mpx.training.fit import fit  # torch and Lightning, which take seconds: only once the configuration is known to be good

        fit(cfg, folder, described.record, trial=described.trial, config=described.config)
    except (KeyboardInterrupt, SystemExit) as error:
        return Ending(
            "interrupted", signals.TERMINATED if error.args == (signals.TERMINATED,) else EXIT["interrupted"], _interrupted(folder)
        )
    except Exception as error:
        if isinstance(error, UserError) and not folder.begun:
            folder.abandon()
            raise
        if (ending := _ended_elsewhere(folder, lost=ranks.is_lost(error))) is not None:
            return ending
        # A signal can also have ended a data loader's worker or another process of the run, which this one needs.
        if signals.asked() and isinstance(error, RuntimeError):
            return Ending("interrupted", signals.TERMINATED, _interrupted(folder))
        status = "diverged" if isinstance(error, Diverged) else "failed"
        line, bug = _line_for(error, cfg, folder.path)
        return Ending(status, EXIT[status], line, bug)
    return Ending("completed", EXIT["completed"])


def _ended_elsewhere(folder: Folder, *, lost: bool) -> Ending | None:
    """How the run ends because another of its processes has; None if none has. lost: one is gone without a word."""
    failure = ranks.failure_elsewhere(folder.path)
    if failure:
        return Ending("failed", EXIT["failed"], failure)
    if failure is None and not lost:
        return None
    why = "another process of this run is gone; " if failure is None else ""
    return Ending("interrupted", signals.TERMINATED, f"{why}{_interrupted(folder)}")


def _interrupted(folder: Folder) -> str:
    if not folder.begun:
        return "interrupted before training began; nothing was changed"
    return f"interrupted; the same command {'' if sweep.in_sweep() else 'with if_exists=resume '}continues it"


def _line_for(error: Exception, cfg: DictConfig, path: Path) -> tuple[str, Exception | None]:
    """One line, and the error where its traceback tells more."""
    from mpx.runs.explain import explain

    line = explain(error, cfg, path)
    short = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return line or short, error if line is None or channels.shows_traceback() else None


def _conclude(folder: Folder, record: dict[str, Any], ending: Ending, *, quiet: bool = False) -> int:
    """Write the record, tell user (unless `quiet`) and sweep, and release the folder. Returns the exit code."""
    record["status"], code = ending.status, ending.code
    if ending.bug is not None and not quiet:
        traceback.print_exception(ending.bug)
    if ending.line:
        record["error"] = ending.line
    if ending.line and not quiet:
        print(ending.line if ending.status == "interrupted" else f"error: {ending.line}", file=sys.stderr)
    kept = folder.begun or (bool(folder.made) and ending.status == "failed")  # the record of a bug helps to find it
    if kept:
        if not _write(folder.path, record) and ending.status == "completed":
            code = EXIT["failed"]
        folder.lock.release()
    else:
        folder.abandon()
    sweep.report(ending.status, folder.path if kept else None, ending.line, _for_the_table(record))
    return code


def _conclude_for_another(folder: Folder, record: dict[str, Any], lost: bool) -> int:
    """Where training waits for ever, for a process that has ended, or with a signal that it does not hear."""
    ending = _ended_elsewhere(folder, lost=lost) or Ending("interrupted", signals.TERMINATED, _interrupted(folder))
    return _conclude(folder, record, ending)


def _for_the_table(record: dict[str, Any]) -> dict[str, Any]:
    """The parts of a record that a sweep's table shows."""
    parts = {name: record.get(name, {}) for name in ("metrics", "metric", "speed")}
    return parts | {"emulated": record.get("precision", {}).get("emulated")}


def _write(path: Path, record: dict[str, Any]) -> bool:
    """Returns whether the record could be written."""
    try:
        write_result(path, record)
    except OSError as error:
        print(f"error: {path / folders.RESULT} could not be written ({error.strerror}).", file=sys.stderr)
        return False
    return True


def _leave_as_it_is(folder: Folder) -> int:
    """The run is already there: say how it ended and what repeats it. Returns the exit code."""
    status, error = folder.finished["status"], f"{str(folder.finished.get('error')).rstrip('.')}."
    line = f"{folder.path} is already {status}; nothing to do. if_exists=overwrite repeats it, if_exists=new runs it beside."
    if status == "failed":
        again = "retry_failed=true" if sweep.in_sweep() else "if_exists=resume"
        line = f"{folder.path} failed earlier: {error} {again} tries it again."
    if status == "diverged" and sweep.in_sweep():
        line = f"{folder.path} diverged earlier: {error} if_exists=overwrite repeats it."
    print(line)
    sweep.report(status, folder.path, line, _for_the_table(folder.finished), skipped=True)
    if sweep.in_sweep():
        return EXIT[status]  # a repeated sweep says of each job what it said before
    return 0 if status in folders.DONE else EXIT["failed"]


def _leave_to_the_other(error: InUse) -> int:
    """Another sweep trains this run: the sweep goes on with its other jobs. Returns the exit code."""
    sweep.report(sweep.IN_USE, None, f"{str(error).split('. ')[0]}. The same command takes its result once it has finished.", skipped=True)
    return MISTAKE


def _follow(cfg: DictConfig, started: Launch) -> int:
    """A further rank of a distributed run trains in step with rank 0 and writes no record. Returns the exit code."""
    shared = ranks.told(started)
    if shared is None and started.by is not None:
        return 0  # rank 0 says why
    if shared is None:
        raise UserError("LOCAL_RANK is set, but mpx did not start this process. Start one process; trainer.devices starts the others.")
    path, resume_from = shared
    signals.stop_once()
    if started.by is None:
        watch.end_with_rank_0()
    record = {"environment": {}, "config": OmegaConf.to_container(cfg, resolve=True)}
    code = 0
    try:
        with signals.held():
            from mpx.training.fit import fit

        fit(cfg, Folder(path, resume_from=resume_from), record, trial="", config="")
    except Diverged:
        code = EXIT["diverged"]  # all ranks stop at once, and rank 0 says why
    except (KeyboardInterrupt, SystemExit):
        ranks.report_end(path, started.rank)
        code = signals.TERMINATED
    except Exception as error:
        code = _failed_following(error, cfg, path, started.rank)
    return code if started.by is not None else 0  # rank 0 takes another code for that of a process that was killed


def _failed_following(error: Exception, cfg: DictConfig, path: Path, rank: int) -> int:
    """Rank 0 records why this one failed. Returns the exit code."""
    if ranks.is_lost(error):
        print(f"process {rank} of this run stops, since another one did", file=sys.stderr)
    elif signals.asked():
        ranks.report_end(path, rank)
    elif not isinstance(error, UserError) or (path / folders.CONFIG).is_file():  # else rank 0 has found the same mistake
        line, bug = _line_for(error, cfg, path)
        if bug is not None:
            traceback.print_exception(bug)
        ranks.report_end(path, rank, line)
    return EXIT["failed"]
