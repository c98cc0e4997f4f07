"""What is known and refused before the first job of a sweep, so that a mistake is said once and nothing is
left behind."""

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, open_dict

from mpx.errors import UserError
from mpx.settings import check
from mpx.settings.fields import FIELDS
from mpx.settings.front_door import words_of
from mpx.settings.values import check_value, key_of
from mpx.sweep import cluster
from mpx.system.environment_variables import in_sweep
from mpx.system.machine import usable_cores

TARGET = "hydra_plugins.mpx.Local"  # of conf/hydra/launcher/local.yaml


def check_experiment(config: DictConfig) -> None:
    """Raise UserError for a single run that names an experiment without a value for each key of its grid.
    config: Hydra's.

    A job of the sweep has a value for each of these keys, so its command line can be repeated by hand.
    """
    chosen = config.runtime.choices.get("experiment")
    grid = list(config.sweeper.get("params") or {})
    given = set(map(key_of, words_of(config)))
    missing = [key for key in grid if key_of(key) not in given]
    if chosen is not None and missing:
        raise UserError(
            f"experiment={chosen} is a grid over {', '.join(grid)}, and this is a single run. Start all of "
            "it with "
            f"python -m mpx.train -m experiment={chosen}, or give one value each to {', '.join(missing)}."
        )


def check_single(config: DictConfig) -> None:
    """Raise UserError for a run outside a sweep with a setting that only sweeps have."""
    if config.get("until") is not None and not in_sweep():
        raise UserError(
            "until=decided trains settings in rounds of seeds, and this is a single run. Use python -m "
            "mpx.train -m."
        )


def check_sweep(config: DictConfig) -> None:
    """Raise UserError for a sweep that cannot begin. config: of the sweep."""
    check_value("output_dir", config.output_dir)
    hydra = config.hydra
    if cluster.launcher_of(hydra) is None and hydra.launcher["_target_"] != TARGET:
        given = hydra.runtime.choices["hydra/launcher"]
        raise UserError(
            f"hydra/launcher={given}: mpx starts jobs by local, submitit_local or submitit_slurm. Leave it "
            "out."
        )
    cluster.check_launcher(hydra)
    for word in hydra.overrides.hydra:
        if key_of(word).startswith(("hydra.sweep.", "hydra.job.chdir")):
            raise UserError(f"{word}: mpx names the folders of a sweep, and removes them. Leave it out.")
    jobs = hydra.launcher.get("n_jobs", 1)
    if type(jobs) is not int or jobs == 0:
        raise UserError(
            f"hydra.launcher.n_jobs={jobs} must be a whole number of at least 1, or -1 for as many jobs as "
            "cores."
        )
    if (sweeper := hydra.runtime.choices["hydra/sweeper"]) not in ("basic", "decided"):
        raise UserError(f"hydra/sweeper={sweeper}: a sweep is a grid, or until=decided. Leave it out.")
    folders = [word for word in words_of(hydra) if key_of(word) == "output_dir"]
    if any(len(values) > 1 for values in grid({}, folders)):
        raise UserError(
            "output_dir: a sweep has one, in which its jobs leave reports. Start one sweep for each, or "
            "give each a study=."
        )
    _refuse_mistakes(config)


def grid_of(config: DictConfig) -> list[list[str]]:
    """The sweep's grid. config: Hydra's."""
    return grid(config.sweeper.get("params") or {}, words_of(config))


def grid(params: Mapping[str, Any], words: Iterable[str]) -> list[list[str]]:
    """For each key the overrides among which jobs choose. params: of an experiment; the words of the command
    line override them.
    """
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    values_of = {}
    for override in parser.parse_overrides([*(f"{key}={value}" for key, value in params.items()), *words]):
        key = override.get_key_element()
        if not override.is_sweep_override():
            values: Iterable[str] = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            values = override.sweep_string_iterator()
        else:
            raise UserError(
                f"{override.input_line}: a grid has no intervals. Write its values, as 0.1,0.2,0.5."
            )
        values_of[key] = [f"{key}={value}" for value in values]
    return list(values_of.values())


def at_once(config: DictConfig) -> int:
    """The most jobs that the launcher runs at the same time. config: Hydra's."""
    kind = cluster.launcher_of(config)
    if kind == cluster.LOCAL:
        return config.sweeper.get("max_batch_size") or sys.maxsize
    if kind == cluster.SLURM:
        return config.launcher.array_parallelism
    given = config.launcher.get("n_jobs", 1)
    return given if given > 0 else max(1, usable_cores() + 1 + given)


def _refuse_mistakes(config: DictConfig) -> None:
    """Raise UserError for a value that no job could use, and for settings of which the first and the last job
    would say the same.

    Jobs of a cluster may have files and devices that this machine lacks.
    """
    values = grid_of(config.hydra)
    parser = OverridesParser.create()
    for word in itertools.chain(*values):
        override = parser.parse_override(word)
        key, value = override.key_or_group, override.value()
        # A reference to another key.
        if key in FIELDS and not override.is_delete() and "${" not in str(value):
            check_value(key, value)
    if cluster.launcher_of(config.hydra) is None:
        first, last = (_mistake(config, [words[at] for words in values]) for at in (0, -1))
        if first is not None and str(first) == str(last):
            raise first


def _mistake(config: DictConfig, words: Sequence[str]) -> UserError | None:
    """What keeps the job with these overrides from beginning."""
    job = GlobalHydra.instance().config_loader().load_sweep_config(config, list(words))
    with open_dict(job):
        hydra = job.pop("hydra")
    try:
        check(job, words_of(hydra))
    except UserError as error:
        return error
    return None
