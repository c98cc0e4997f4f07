"""Hydra composes the files of conf/ once in a process for each choice of them; the commands of this process start from copies.

To read and merge the files takes a tenth of a second, three times in each run: as long as all else that a short run does. What the command
line sets in them is never kept. `command` starts a process that composes as a user's does.
"""

import copy
import dataclasses

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import Overrides
from hydra._internal.hydra import Hydra

from mpx.settings.extras import CONF

_list_files, _merge = config_loader_impl.create_defaults_list, ConfigLoaderImpl._compose_config_from_defaults_list
_look_for_paths = ConfigLoaderImpl._process_config_searchpath
_lists, _merged, _without_paths = {}, {}, set()


def keep() -> None:
    """From now on, in this process."""
    config_loader_impl.create_defaults_list = _listed_once
    ConfigLoaderImpl._compose_config_from_defaults_list = _merged_once
    ConfigLoaderImpl._process_config_searchpath = _looked_for_once
    # Composes once more only to read hydra.mode. None leaves the mode to -m.
    Hydra.get_mode = lambda self, config_name, overrides: None


def _listed_once(repo, config_name, overrides_list, **how):
    own = Overrides(repo=repo, overrides_list=overrides_list).config_overrides
    choices = [override for override in overrides_list if not any(override is other for other in own)]
    if not _may_keep(repo):
        return _list_files(repo, config_name, overrides_list, **how)
    key = (config_name, *how.items(), *(choice.input_line for choice in choices))
    if key not in _lists:
        _lists[key] = _list_files(repo, config_name, choices, **how)
    return dataclasses.replace(_lists[key], config_overrides=own)


def _merged_once(self, defaults, repo):
    if not _may_keep(repo):
        return _merge(self, defaults, repo)
    key = repr(defaults)
    if key not in _merged:
        _merged[key] = _merge(self, defaults, repo)
    return copy.deepcopy(_merged[key])


def _looked_for_once(self, config_name, overrides, repo):
    """For hydra.searchpath in the first file."""
    if config_name in _without_paths and _may_keep(repo) and not any("searchpath" in override.key_or_group for override in overrides):
        return
    _look_for_paths(self, config_name, overrides, repo)
    if _may_keep(repo):
        _without_paths.add(config_name)


def _may_keep(repo) -> bool:
    """Whether the files are mpx's and Hydra's alone: those of a test's own change."""
    return {source.path for source in repo.get_sources()} == {"hydra.conf", str(CONF), ""}
