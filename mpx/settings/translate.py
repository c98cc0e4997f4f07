"""Translate exceptions of Hydra and OmegaConf into one line that names the key, the most similar valid one
and what is allowed.
"""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from mpx.errors import DISK_FULL, UserError, nearest, nearest_key
from mpx.settings.choices import GROUPS, KEYS, no_such_key
from mpx.settings.fields import FIELDS, FREE, FREE_BELOW
from mpx.settings.values import removed
from mpx.system.printing import shown

FIRST = {
    "mpx.compare": "study=default",
    "mpx.deploy": "run=FOLDER",
    "mpx.bench": "what=gemm",
    "mpx.train": "precision=amp",
}
KNOWN = (UserError, HydraException, OmegaConfBaseException, YAMLError)


def translated(error: BaseException, keys: Iterable[str] = KEYS, program: str = "mpx.train") -> str | None:
    """The line to show for an error in the configuration; None if `error` is something else.

    keys: those that `program` takes, one of which the line may suggest.
    """
    text = _text(error, keys, program)
    return None if text is None else shown(" ".join(text.split()))  # a value may contain a line break


def _text(error: BaseException, keys: Iterable[str], program: str) -> str | None:
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        where = error.filename or "a file of this command"
        return f"{where} cannot be written ({error.strerror}). Free some space, or write elsewhere."
    if not isinstance(error, KNOWN):
        return None
    if isinstance(error, MissingConfigException):
        return _missing_choice(error)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override!r} is not a setting: write key=value, as {FIRST[program]}, and quote values "
            "with special characters, as 'key=\"a, b\"'."
        )
    if (
        several := re.match(r"(Ambiguous value for argument|Sweep parameters) '(.+)'", str(error))
    ) is not None:
        return _several(several[2], program)
    return _unknown_key(error, keys, program) or str(error)


def _several(word: str, program: str) -> str:
    """The line for a word with several values, as for a sweep, where there is none."""
    key = word.partition("=")[0]
    or_list = "" if key in GROUPS else f", or write {key}=[…] if it takes a list"
    if program != "mpx.train":
        return f"{word} gives several values, and {program} takes one. Start it once for each{or_list}."
    return f"{word} gives several values to a single run. Start a sweep with python -m {program} -m{or_list}."


def _missing_choice(error: MissingConfigException) -> str:
    group, _, wanted = (error.missing_cfg_file or "").rpartition("/")
    if not group or not error.options:
        return str(error).split("\n")[0]
    if group == "model" and (library := library_of(wanted)) is not None:
        return f"model={wanted} is a network of {library}: use model={library} model.name={wanted}."
    return (
        f"{group}={wanted}: no such choice.{nearest(wanted, error.options)} Allowed: "
        f"{', '.join(sorted(error.options))}."
    )


def library_of(network: str) -> str | None:
    """torchvision or timm, if it has a network of this name. Reads their files, since importing them takes
    seconds.
    """
    defines = re.compile(rf"^@register_model.*\n(?:[@ )].*\n)*def {re.escape(network)}\(", re.MULTILINE)
    for library in ("torchvision", "timm"):
        found = find_spec(library)
        for folder in found.submodule_search_locations or () if found is not None else ():
            if any(defines.search(path.read_text()) for path in Path(folder, "models").glob("*.py")):
                return library
    return None


def _unknown_key(error: BaseException, keys: Iterable[str], program: str) -> str | None:
    match = re.search(r"Could not override '([^']+)'", str(error)) or re.search(
        r"full_key: (\S+)", str(error)
    )
    if match is None:
        return None
    key = match.group(1)
    if (line := removed(key)) is not None:
        return line
    below = (*FREE_BELOW, *(f"{free}." for free in FREE))
    if key in FREE or (key.startswith(below) and not key.endswith("._target_")):
        return f"{key}: an argument of the constructor is added with a +, as +{key}=VALUE."
    if key.split(".")[0] in ("module", "datamodule", "metric", "metric_goal"):
        return (
            f"{key} belongs to a project of your own. Name its module, as "
            "module._target_=package.module.Class."
        )
    if isinstance(error, InterpolationResolutionError):
        return (
            f"{key}: {str(error).splitlines()[0]}. Write ${{KEY}} with the whole name of another key, "
            "or a plain value."
        )
    if key.startswith("until."):
        return (
            f"{key} belongs to a sweep that trains until each setting is decided. Start it with -m "
            "until=decided."
        )
    if key in FIELDS:  # another choice of the group has it
        typed = re.search(rf"\+({re.escape(key)}=.*)", str(error))  # Hydra proposes to add it
        return no_such_key(key, typed[1] if typed else "")
    return f"{key}: no such key.{nearest_key(key, keys)} python -m {program} --help lists them all."
