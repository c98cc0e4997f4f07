"""The commands that repeat a study: those of its runs, merged into sweeps if they differ only in the values
of a key.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable

from mpx.compare.run import Run

PROGRAM = ["python", "-m", "mpx.train"]
# Keys about resuming, output folders, printing and looks, which a repeated study does not need: it has the
# seeds.
OMITTED = ("if_exists", "ckpt_path", "output_dir", "retry_failed", "fail_fast", "trainer.progress", "until")
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
    """One sweep for each full grid of runs, and a single command for every other run."""
    items = {frozenset(overrides.items()) for run in runs if (overrides := _overrides(run))}
    for key in sorted(
        {key for item in items for key, _ in item} - {CONFIG_DIR}, key=lambda key: (key != "seed", key)
    ):
        items = _joined(items, key)
    return tuple(sorted(_line(dict(item)) for item in items))


def _overrides(run: Run) -> dict[str, tuple[str, ...]] | None:
    """Key -> its single value; None if the command is unknown."""
    try:
        words = _words(run.environment.get("command") or "")
    except ValueError:  # an unclosed quotation
        return None
    if words[:3] != PROGRAM or not all("=" in word for word in words[3:]):
        return None
    pairs = (word.split("=", 1) for word in words[3:])
    kept: dict[str, tuple[str, ...]] = {
        key: (value,) for key, value in pairs if key not in OMITTED and not key.startswith("until.")
    }
    return kept | {"seed": (str(run.seed),)}


def _joined(items: set[frozenset], key: str) -> set[frozenset]:
    """Merge items that differ only in the values of `key`."""
    alike = defaultdict(set)
    for item in items:
        alike[frozenset((name, values if name != key else None) for name, values in item)].update(
            dict(item).get(key, ())
        )
    return {
        frozenset(
            (name, values if name != key else tuple(sorted(merged, key=_by_size))) for name, values in rest
        )
        for rest, merged in alike.items()
    }


def _by_size(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdigit() else (0, value)


def _line(item: dict[str, tuple[str, ...]]) -> str:
    sweep = any(len(values) > 1 for values in item.values())
    order = sorted(item, key=lambda key: (key == "seed", key != CONFIG_DIR, key))
    words = [f"{key}={','.join(item[key])}" for key in order]
    return shlex.join([*PROGRAM, *(["-m"] if sweep else []), *words])
