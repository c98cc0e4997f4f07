"""How many jobs a sweep has, and how many of them run at the same time."""

import math

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from mpx.machine import usable_cores
from mpx.settings.front_door import typed


def total_jobs(config: DictConfig) -> int:
    """Jobs of the whole sweep. config: Hydra's. A sweeper that searches says how many it tries, the usual one runs the whole grid."""
    if (trials := config.sweeper.get("n_trials")) is not None:
        return trials
    grid = [f"{key}={value}" for key, value in (config.sweeper.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    sizes = {  # the command line comes last and wins
        override.get_key_element(): len(list(override.sweep_string_iterator())) if override.is_discrete_sweep() else 1
        for override in parser.parse_overrides([*grid, *typed(config)])
    }
    return math.prod(sizes.values())


def at_once(config: DictConfig) -> int:
    """Jobs that the launcher runs at the same time on this machine; for joblib, -1 is as many as cores. config: Hydra's."""
    jobs = config.launcher.get("n_jobs", 1)
    return jobs if jobs > 0 else max(1, usable_cores() + 1 + jobs)
