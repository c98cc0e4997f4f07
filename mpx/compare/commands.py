"""The commands that repeat a study: one for each setting, a sweep over its seeds."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable

from mpx.compare.run import Run

PROGRAM = ["python", "-m", "mpx.train"]
# keys that a repeated setting does not need: about resuming, output folders, printing, looks and seeds
OMITTED = (
    "if_exists",
    "ckpt_path",
    "output_dir",
    "retry_failed",
    "fail_fast",
    "trainer.progress",
    "until",
    "seed",
)
CONFIG_DIR = "--config-dir"  # Hydra's option for a folder of the user's own YAML files
PLACES = (CONFIG_DIR, "data.root", "data.cache", "output_dir", "ckpt_path")  # folders of one machine


def portable(command: str) -> str:
    """The command with DIR in place of the machine's folders: data.root=DIR."""
    words = (word.split("=", 1) for word in _words(command))
    return shlex.join(
        f"{word[0]}=DIR" if len(word) > 1 and word[0] in PLACES else "=".join(word) for word in words
    )


def _words(command: str) -> list[str]:
    """The words of a command line, an option and its value as one: --config-dir=DIR. Raises ValueError for an
    unclosed quotation.
    """
    words: list[str] = []
    for word in shlex.split(command):
        if words and words[-1] == CONFIG_DIR:
            words[-1] += f"={word}"
        else:
            words.append(re.sub("^-cd(?==|$)", CONFIG_DIR, word))  # Hydra's short name of it
    return words


def commands(runs: Iterable[Run]) -> tuple[str, ...]:
    """One command for each setting, a sweep over its seeds."""
    seeds: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for run in runs:
        if (words := _overrides(run)) is not None:
            seeds[words].add(run.seed)
    return tuple(sorted(_line(words, sorted(of_setting)) for words, of_setting in seeds.items()))


def _overrides(run: Run) -> tuple[str, ...] | None:
    """The settings of its command, without the seed; None if the command is unknown."""
    try:
        words = _words(run.environment.get("command") or "")
    except ValueError:  # an unclosed quotation
        return None
    if words[:3] != PROGRAM or not all("=" in word for word in words[3:]):
        return None
    keys = (word.split("=", 1)[0] for word in words[3:])
    kept = (
        word
        for key, word in zip(keys, words[3:], strict=True)
        if key not in OMITTED and not key.startswith("until.")
    )
    return tuple(sorted(kept, key=lambda word: (not word.startswith(CONFIG_DIR), word)))


def _line(words: tuple[str, ...], seeds: list[int]) -> str:
    sweep = ["-m"] if len(seeds) > 1 else []
    return shlex.join([*PROGRAM, *sweep, *words, f"seed={','.join(map(str, seeds))}"])
