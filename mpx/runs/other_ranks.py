"""A rank above 0 of a distributed run: it trains in step with rank 0, and writes no record."""

import sys
import traceback
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from mpx.errors import Diverged, UserError
from mpx.imports import heavy
from mpx.launch import Launch
from mpx.record.result import EXIT
from mpx.runs import ranks, signals, watch
from mpx.runs.folder import CONFIG, Folder


def follow(cfg: DictConfig, started: Launch) -> int:
    """Train in step with rank 0. Returns the exit code. Raises UserError if mpx did not start this process."""
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
        with signals.held(), heavy():
            from mpx.training.fit import fit  # torch and Lightning, which take seconds

        fit(cfg, Folder(path, resume_from=resume_from), record, trial="", config="")
    except Diverged:
        code = EXIT["diverged"]  # all ranks stop at once, and rank 0 says why
    except (KeyboardInterrupt, SystemExit):
        ranks.report_end(path, started.rank)
        code = signals.TERMINATED
    except Exception as error:
        code = _failed(error, cfg, path, started.rank)
    return code if started.by is not None else 0  # rank 0 would take another code for a killed process


def _failed(error: Exception, cfg: DictConfig, path: Path, rank: int) -> int:
    """Rank 0 records why this one failed. Returns the exit code."""
    if ranks.is_lost(error):
        print(f"process {rank} of this run stops, since another one did", file=sys.stderr)
    elif signals.asked():
        ranks.report_end(path, rank)
    elif not isinstance(error, UserError) or (path / CONFIG).is_file():  # else rank 0 has found the same mistake
        from mpx.runs.explain import line_and_bug  # torch

        line, bug = line_and_bug(error, cfg, path)
        if bug is not None:
            traceback.print_exception(bug)
        ranks.report_end(path, rank, line)
    return EXIT["failed"]
