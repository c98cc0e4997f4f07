"""Check the command line before Hydra reads it, for words that Hydra misunderstands or answers with a traceback."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mpx.errors import UserError
from mpx.private.hydra import options
from mpx.settings.translate import GROUPS, nearest_key
from mpx.settings.values import dotted, key_of

# Values that Hydra does not read as text; and paths and endings, by which it would find a choice that mpx does not know as the same one.
NO_NAME = re.compile(r"null|true|false|[-+]?[\d.]+(e[-+]?\d+)?|[\[{].*|(.*/)?\.{0,2}(/.*)?|.*\.ya?ml", re.IGNORECASE)
OURS = {  # keys of Hydra's own that mpx needs as they are -> why
    "hydra.mode": "a sweep is started with -m",
    "hydra.callbacks.summary": "mpx counts the failed jobs of a sweep with it",
}

NAME = re.compile(r"[\w.+/]+")  # of a key
SYNTAX = set("'[]{}(),$\\")  # characters by which Hydra knows lists, names with values, functions, sweeps and other keys' values
OF_CFG = {"-p", "--package", "--resolve"}  # options that only change what another one shows
OTHER_CONFIG = {"-cn", "--config-name", "-cp", "--config-path"}
COMPLETION = re.compile(r"(install|uninstall|query)=(bash|fish|zsh)")
MODES = {"-m", "--multirun", "-r", "--run", "-c", "--cfg", "-i", "--info", "-sc", "--shell-completion"}  # of which Hydra takes one


def checked_words(words: Iterable[str], keys: Iterable[str], program: str, conf: Path) -> list[str]:
    """Return `words` with the home folder for ~ in each `key=~/…`, as some shells write it, and quotes around a value such as a run's
    folder, whose = Hydra takes in quotes only. Raises UserError.

    keys: those that `program` takes. conf: the folder of the groups.
    """
    words, keys = list(words), list(keys)
    _check_options(words, program)
    for word in words:
        _check_option(word, keys, program)
        _check_key(word, keys)
        _check_choice(word, keys, conf)
    given = [_quoted(re.sub(r"^([\w.+]+=['\"]?)~(?=/|$|['\"])", lambda found: found[1] + str(Path.home()), word)) for word in words]
    for word in dotted(given):
        _check_hydras(word, given)
    return given


def _quoted(word: str) -> str:
    key, _, value = word.partition("=")
    if "=" not in value or '"' in value or not NAME.fullmatch(key):
        return word
    return f'{key}="{value}"' if SYNTAX.isdisjoint(value) or os.path.exists(value) else word


def _check_options(words: list[str], program: str) -> None:
    if len(given := [word for word in words if word.split("=")[0] in MODES]) > 1:
        raise UserError(f"{' and '.join(given)} cannot be given together. Leave one of them out.")
    names = {word.split("=")[0] for word in words}
    if program != "mpx.train" and (other := sorted(names & OTHER_CONFIG)):
        raise UserError(f"{other[0]}: {program} reads its own configuration only. Leave it out.")
    if (idle := OF_CFG & names) and not names & {"-c", "--cfg", "-h", "--help"}:
        raise UserError(f"{min(idle)} changes what --cfg shows, and nothing else. Add --cfg job, or leave {min(idle)} out.")
    if names & {"-sc", "--shell-completion"} and len(list(filter(COMPLETION.fullmatch, words))) != 1:
        raise UserError("--shell-completion needs one of install=, uninstall= and query=, with bash, fish or zsh: as install=bash.")


def _check_option(word: str, keys: list[str], program: str) -> None:
    if not word.startswith("-") or word.split("=")[0] in options():
        return
    name = word.lstrip("-").split("=")[0].replace("-", "_")
    raise UserError(
        f"{word.split('=')[0]}: no such option. Settings are written key=value, without dashes.{nearest_key(name, keys)} "
        f"python -m {program} --help lists them all."
    )


def _check_key(word: str, keys: list[str]) -> None:
    if word.startswith("~"):
        raise UserError(f"{word}: a setting cannot be taken away. Leave it out to have its default, or give it another value as key=value.")
    if word.lstrip("+").startswith("="):
        raise UserError(f"{word} has no key. Write key=value, without spaces around the =.")
    key = key_of(word)
    below = next((known for known in keys if known.startswith(f"{key}.")), None)
    if below is not None and key not in GROUPS and not word.partition("=")[2].startswith(("{", "$")):
        raise UserError(f"{word}: {key} is not a single value. Set its keys, as {below}=VALUE.")
    whole = next((known for known in keys if known not in GROUPS and key.startswith(f"{known}.")), None)
    if whole is not None:  # a key below a list is the index of an item to OmegaConf, which raises for anything else
        raise UserError(f"{key}: {whole} has no keys of its own. Write {whole}=VALUE, a list as {whole}=[…].")


def _check_hydras(word: str, words: list[str]) -> None:
    """Refuse keys of Hydra's own that mpx sets, and a grid that no experiment has: OmegaConf would fail with an assertion."""
    key, _, values = word.lstrip("+").partition("=")
    if (ours := next((ours for ours in OURS if key == ours or key.startswith(f"{ours}.")), None)) is not None:
        raise UserError(f"{word}: {OURS[ours]}. Leave it out.")
    name = key.removeprefix("hydra.sweeper.params.")
    if name != key and not any(other.startswith("experiment=") for other in words):
        raise UserError(f"{word}: a grid is given by its keys themselves. Write -m {name}={values.strip(chr(39) + chr(34))}.")


def _check_choice(word: str, keys: list[str], conf: Path) -> None:
    group, _, given = word.partition("=")
    if group.lstrip("+") == "tuned":
        raise UserError(f"{word}: what was tuned goes with the model and the data. Use task={given}, or model= and data=.")
    if group.startswith("hydra") and "." not in group and NO_NAME.fullmatch(given):
        raise UserError(f"{word}: no such choice. Leave it out, or see python -m mpx.train --hydra-help.")
    if (plain := group.lstrip("+")) != group and plain in GROUPS and plain in keys and not given.startswith("{"):
        raise UserError(f"{word}: a choice needs no +. Write {plain}={given}.")
    if group not in GROUPS or group not in keys or "=" not in word:
        return
    for choice in given.split(","):
        if NO_NAME.fullmatch(choice.strip(" '\"")):
            allowed = sorted(path.stem for path in (conf / group).glob("*.yaml"))
            raise UserError(f"{group}={choice}: no such choice. Allowed: {', '.join(allowed)}; or leave it out.")
