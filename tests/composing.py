"""Hydra reads the files of conf/ once in a process, and composes them once for each choice; the commands of
this process start from copies.

To read and merge them takes a tenth of a second, three times in each run: as long as all else that a short
run does. What the command line sets in them is never kept. `command` starts a process that composes as a
user's does.
"""

import copy
import dataclasses

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra._internal.hydra import Hydra

from mpx.settings.choices import CONF

_read, _list, _merge = (
    ConfigRepository.load_config,
    config_loader_impl.create_defaults_list,
    ConfigLoaderImpl._compose_config_from_defaults_list,
)
_files, _lists, _merged = {}, {}, {}


def keep() -> None:
    """From now on, in this process."""
    ConfigRepository.load_config = _read_once
    config_loader_impl.create_defaults_list = _listed_once
    ConfigLoaderImpl._compose_config_from_defaults_list = _merged_once
    # Composes once more only to read hydra.mode. None leaves the mode to -m.
    Hydra.get_mode = lambda self, config_name, overrides: None


def _read_once(self, config_path):
    if not _may_keep(self):
        return _read(self, config_path)
    if config_path not in _files:
        _files[config_path] = _read(self, config_path)
    return copy.deepcopy(_files[config_path])


def _listed_once(repo, config_name, overrides_list, **how):
    if not _may_keep(repo):
        return _list(repo, config_name, overrides_list, **how)
    own = Overrides(repo=repo, overrides_list=overrides_list).config_overrides
    choices = [override for override in overrides_list if not any(override is other for other in own)]
    key = (config_name, *how.items(), *(choice.input_line for choice in choices))
    if key not in _lists:
        _lists[key] = _list(repo, config_name, choices, **how)
    return dataclasses.replace(_lists[key], config_overrides=own)


def _merged_once(self, defaults, repo):
    if not _may_keep(repo):
        return _merge(self, defaults, repo)
    key = repr(defaults)
    if key not in _merged:
        _merged[key] = _merge(self, defaults, repo)
    return copy.deepcopy(_merged[key])


def _may_keep(repo) -> bool:
    """Whether the files are mpx's and Hydra's alone: those of a test's own change."""
    return {source.path for source in repo.get_sources()} == {"hydra.conf", str(CONF), ""}
