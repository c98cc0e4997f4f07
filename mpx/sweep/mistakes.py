"""Mistakes that are found before the first job of a sweep, so that they are said once and nothing is left behind."""

import itertools
from collections.abc import Sequence

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, open_dict

from mpx.errors import UserError
from mpx.settings import check
from mpx.settings.fields import FIELDS
from mpx.settings.front_door import typed, words_of
from mpx.settings.values import check_value, key_of, settings_of
from mpx.sweep.cluster import launcher_of
from mpx.sweep.size import grid


def refuse_mistakes(config: DictConfig) -> None:
    """Raise UserError for a value that no job could use, and for settings of which all jobs would say the same. config: of the sweep.

    Jobs of a cluster may have files and devices that this machine lacks, and what a search will combine is not known yet.
    """
    values = grid(config.hydra.sweeper.get("params") or {}, words_of(config.hydra), intervals=False)
    parser = OverridesParser.create()
    for word in itertools.chain(*values):
        override = parser.parse_override(word)
        for key, value in settings_of(override):
            if key in FIELDS and not override.is_delete() and "${" not in str(value):  # a reference to another key
                check_value(key, value)
    if launcher_of(config.hydra) is None and config.hydra.sweeper.get("n_trials") is None:
        _refuse_in_all(config, values)


def _refuse_in_all(config: DictConfig, values: Sequence[Sequence[str]]) -> None:
    first = None
    # Two seeds tell whether the mistake depends on the seed, as that of a path with ${seed} does.
    for words in itertools.product(*(found[:2] if key_of(found[0]) == "seed" else found for found in values)):
        error = _mistake(config, words)
        if error is None or (first is not None and str(error) != str(first)):
            return  # that job trains, or each says what is wrong with it
        first = first or error
    if first is not None:
        raise first


def _mistake(config: DictConfig, words: Sequence[str]) -> UserError | None:
    """What keeps the job with these overrides from beginning."""
    job = GlobalHydra.instance().config_loader().load_sweep_config(config, list(words))
    with open_dict(job):
        hydra = job.pop("hydra")
    try:
        check(job, typed(hydra))
    except UserError as error:
        return error
    return None
