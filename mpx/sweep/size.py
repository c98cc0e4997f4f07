"""The number of jobs of a sweep, and how many of them run at the same time."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.machine import usable_cores
from mpx.settings.front_door import words_of
from mpx.sweep.cluster import LOCAL, SLURM, launcher_of


def total_jobs(config: DictConfig) -> int:
    """The number of jobs: the trials of a sweeper that searches, else the size of the grid. config: Hydra's."""
    if (trials := config.sweeper.get("n_trials")) is not None:
        return trials
    return math.prod(len(words) for words in grid(config.sweeper.get("params") or {}, words_of(config)))


def grid(params: Mapping[str, Any], words: Iterable[str], *, intervals: bool = True) -> list[list[str]]:
    """For each key the overrides among which jobs choose. params: of an experiment; the words of the command line override them.

    intervals: raise UserError for one, instead of leaving it out.
    """
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    found = {}
    for override in parser.parse_overrides([*(f"{key}={value}" for key, value in params.items()), *words]):
        if override.is_sweep_override() and not override.is_discrete_sweep():
            if not intervals:
                continue
            raise UserError(f"{override.input_line}: only a search draws from an interval. Write the values of a grid, as 0.1,0.2,0.5.")
        key = override.get_key_element()
        values = override.sweep_string_iterator() if override.is_discrete_sweep() else [override.get_value_element_as_str()]
        found[key] = [f"{key}={value}" for value in values]
    return list(found.values())


def at_once(config: DictConfig) -> int:
    """The number of jobs that the launcher runs at the same time on this machine. For joblib, -1 means one per core. config: Hydra's."""
    if (kind := launcher_of(config)) is not None:
        return (config.sweeper.get("max_batch_size") or usable_cores()) if kind == LOCAL else 1
    jobs = config.launcher.get("n_jobs", 1)
    return jobs if jobs > 0 else max(1, usable_cores() + 1 + jobs)


def on_all_machines(config: DictConfig, jobs: int) -> int:
    """The number of jobs, of `jobs`, that run at the same time. config: Hydra's."""
    kind = launcher_of(config)
    if kind == LOCAL:
        return min(jobs, config.sweeper.get("max_batch_size") or jobs)
    return min(jobs, config.launcher.array_parallelism) if kind == SLURM else at_once(config)
