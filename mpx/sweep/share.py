"""`gpu_share=K`: K jobs of a sweep run beside one another on each GPU, or on the CPU of a machine without a GPU.

Their accuracy counts and their speed does not, so the sweep measures each setting's speed at its end (alone.py).
"""

from collections.abc import Sequence

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.settings.front_door import MULTIRUN
from mpx.settings.values import check_value, dotted, key_of
from mpx.sweep.gpus import visible_gpus
from mpx.sweep.job_report import in_sweep
from mpx.sweep.size import at_once

KEY = "gpu_share"
LAUNCHER, JOBS = "hydra/launcher", "hydra.launcher.n_jobs"


def with_launcher(words: Sequence[str]) -> list[str]:
    """The command line `words`, to which gpu_share=K in a sweep adds the launcher that runs K jobs on each GPU.

    Hydra chooses the launcher before any code of mpx sees the configuration. Raises UserError for a value that gpu_share cannot have.
    """
    given = {key_of(word): word.partition("=")[2] for word in dotted(words)}
    share = given.get(KEY, "1")
    if share == "1" or not MULTIRUN & given.keys():
        return list(words)
    check_value(KEY, int(share) if share.isdecimal() else share)
    added = {LAUNCHER: "joblib"}
    if given.get(LAUNCHER, "joblib") == "joblib":
        added[JOBS] = str(_most(int(share), on_cpu=given.get("trainer.accelerator") == "cpu"))
    return [*words, *(f"{key}={value}" for key, value in added.items() if key not in given)]


def check_sharing(config: DictConfig) -> None:
    """Raise UserError for a sweep in which gpu_share has no meaning. config: of the sweep, before its first job."""
    if (share := config.gpu_share) == 1:
        return
    if (launcher := config.hydra.runtime.choices[LAUNCHER]) != "joblib":
        raise UserError(f"{KEY}={share} runs jobs beside one another, and {LAUNCHER}={launcher} does not. Use {LAUNCHER}=joblib.")
    if config.trainer.devices not in (1, "auto"):
        raise UserError(f"{KEY}={share} puts several jobs on one device, and trainer.devices={config.trainer.devices}. Leave one out.")
    most = _most(share, on_cpu=config.trainer.accelerator == "cpu")
    if (jobs := at_once(config.hydra)) > most:
        raise UserError(f"{JOBS}={jobs} is more than the {most} jobs that {KEY}={share} allows here. Leave {JOBS} out.")
    if not isinstance(config.hydra.sweeper.get("direction") or "", str):
        raise UserError(f"{KEY}={share}: this search looks for throughput, which jobs that share a device do not have. Use {KEY}=1.")


def check_single(config: DictConfig) -> None:
    """Raise UserError for a run outside a sweep with a setting that only sweeps have."""
    if config.get("until") is not None and not in_sweep():
        raise UserError("until=decided trains settings in rounds of seeds, and this is a single run. Use python -m mpx.train -m.")
    if config.gpu_share > 1 and not in_sweep():  # an experiment's file may set it for all jobs
        raise UserError(
            f"{KEY}={config.gpu_share} runs jobs of a sweep beside one another, and this is a single run. Start a sweep with "
            f"python -m mpx.train -m, or leave {KEY} out."
        )


def _most(share: int, *, on_cpu: bool) -> int:
    """The number of jobs at once."""
    return share * (1 if on_cpu else max(1, len(visible_gpus())))
