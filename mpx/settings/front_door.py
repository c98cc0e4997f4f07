"""Code that all commands share: start, command line, and errors in the settings as one line."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mpx.errors import MISTAKE, PIPE_CLOSED, UserError, causes, nearest_key
from mpx.private.hydra import options
from mpx.settings.choices import CONF, GROUPS, KEYS, help_text
from mpx.settings.values import key_of
from mpx.system.environment_variables import let_hydra_raise, shows_traceback
from mpx.system.printing import print_nowhere, replace_unprintable
from mpx.system.version import version

MULTIRUN = {"-m", "--multirun"}
NAME = re.compile(r"[\w.+/]+")  # of a key
# by these characters Hydra knows lists, mappings, functions, sweeps and other keys' values
SYNTAX = set("'[]{}(),$\\")
# Hydra reads some values as no text or as a list, and drops a path and an ending: it would name the choice
# otherwise than mpx.
NO_CHOICE = re.compile(r"null|true|false|[-+]?[\d.]+(e[-+]?\d+)?|.*[/.[].*", re.IGNORECASE)


@contextmanager
def errors_in_one_line(
    keys: Iterable[str] = KEYS, program: str = "mpx.train", *, told: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Turn an error in the settings into one line on stderr and exit code 2. With HYDRA_FULL_ERROR=1 the
    traceback is shown.

    keys: those that `program` takes. told: is called with the line.
    """
    try:
        yield
    except BrokenPipeError:
        print_nowhere()
        sys.exit(PIPE_CLOSED)
    except Exception as error:
        # OmegaConf has failed over Ctrl-C
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes(error)):
            raise KeyboardInterrupt from error
        from mpx.settings.translate import translated

        if (line := translated(error, keys, program)) is None or shows_traceback():
            raise
        print(f"error: {line}", file=sys.stderr)
        if told is not None:
            told(line)
        sys.exit(MISTAKE)


def read_words(keys: Iterable[str] = KEYS, program: str = "mpx.train", docstring: str = "") -> None:
    """Check sys.argv before Hydra reads it, and answer --help and --version, of which Hydra knows less.

    keys: those that `program` takes. docstring: the program's.
    """
    words = sys.argv[1:]
    if "--version" in words:
        print(version())
        sys.exit()
    for place, word in enumerate(words):
        if word in ("-h", "--help"):
            topic = words[place + 1] if place + 1 < len(words) and NAME.fullmatch(words[place + 1]) else None
            print(help_text(program, docstring, topic), flush=True)
            sys.exit()
    sys.argv[1:] = checked_words(sys.argv[1:], keys, program)


def checked_words(words: Iterable[str], keys: Iterable[str], program: str) -> list[str]:
    """Return `words` with the home folder for ~ in each `key=~/…`, which some shells leave, and with quotes
    around a value that holds a =, such as a run's folder. Raises UserError for words that Hydra
    misunderstands.

    keys: those that `program` takes.
    """
    words, keys = list(words), list(keys)
    for word in words:
        _check_option(word, keys, program)
        _check_single(word, keys)
        _check_choice(word, keys)
    return [
        _quoted(re.sub(r"^([\w.+]+=['\"]?)~(?=/|$|['\"])", lambda match: match[1] + str(Path.home()), word))
        for word in words
    ]


def _quoted(word: str) -> str:
    key, _, value = word.partition("=")
    if "=" not in value or '"' in value or not NAME.fullmatch(key):
        return word
    return f'{key}="{value}"' if SYNTAX.isdisjoint(value) or os.path.exists(value) else word


def _check_option(word: str, keys: list[str], program: str) -> None:
    if not word.startswith("-") or word.split("=")[0] in options():
        return
    name = word.lstrip("-").split("=")[0].replace("-", "_")
    raise UserError(
        f"{word.split('=')[0]}: no such option. Settings are written key=value, without "
        f"dashes.{nearest_key(name, keys)} "
        f"python -m {program} --help lists them all."
    )


def _check_single(word: str, keys: list[str]) -> None:
    """OmegaConf would put a single value in the place of the settings below the key, and the checks go by
    the keys that are typed, which a mapping hides.
    """
    key, _, value = word.partition("=")
    below = next((known for known in keys if known.startswith(f"{key_of(key)}.")), None)
    choice = key_of(key) in GROUPS and not value.lstrip().startswith("{")
    if below is not None and not choice and not value.startswith("$"):
        raise UserError(f"{word}: {key_of(key)} is not a single value. Set its keys, as {below}=VALUE.")


def _check_choice(word: str, keys: list[str]) -> None:
    group, _, given = word.partition("=")
    if group not in GROUPS or group not in keys:
        return
    for choice in given.split(","):
        if NO_CHOICE.fullmatch(choice.strip(" '\"")):
            allowed = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
            raise UserError(
                f"{group}={choice}: no such choice. Allowed: {', '.join(allowed)}; or leave it out."
            )


def multirun_first() -> None:
    """Move the -m of a sweep to the front of sys.argv: argparse needs it before the settings."""
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in MULTIRUN)


def multirun() -> bool:
    """Whether sys.argv asks for a sweep."""
    return bool(MULTIRUN.intersection(sys.argv[1:]))


def start_once(job: Callable[[], None], keys: Iterable[str], program: str, no_sweeps: str) -> None:
    """Start `job`, which Hydra makes of a function, as a command without sweeps. keys: those that `program`
    takes.
    """
    replace_unprintable()
    let_hydra_raise()
    try:
        with errors_in_one_line(keys, program):
            if multirun():
                raise UserError(f"{program} has no sweeps: {no_sweeps}. Leave out -m.")
            read_words(keys, program, sys.modules[job.__module__].__doc__ or "")
            job()
    except KeyboardInterrupt:
        sys.exit(130)


def words_of(config: DictConfig) -> list[str]:
    """The overrides as the user typed them. config: Hydra's own.

    They are not resolved: OmegaConf would look for ${…} in Hydra's configuration.
    """
    words: Any = OmegaConf.to_container(config.overrides.task, resolve=False)
    return words


def expect_schemas() -> None:
    """Silence Hydra 1.3's warning that plugins' schemas check the files of the same names in
    conf/hydra/launcher/.
    """
    warnings.filterwarnings(
        "ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema", UserWarning
    )
