"""The commands that repeat a study: those of its runs, joined into sweeps where they differ in one key's value."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable

from mpx.compare.comparison import Run

PROGRAM = ["python", "-m", "mpx.train"]
DEFAULTS = {"control": "auto", "metric": "auto", "margin": 0.01, "confidence": 0.95}  # conf/compare.yaml
# How a run was continued, where it was put, and what it and its sweep printed: nothing that a repeated study needs.
UNSAID = ("if_exists", "ckpt_path", "output_dir", "retry_failed", "fail_fast", "trainer.progress")
# A text that Hydra takes as it is.
BARE = re.compile(r"(?!(null|true|false|nan|inf)$)([A-Za-z/]|\.\.?/)[\w./-]*", re.ASCII | re.IGNORECASE)
PLACES = ("data.root", "data.cache", "output_dir", "ckpt_path")  # folders of the machine that the run was on


def portable(command: str) -> str:
    """The command without the folders of the machine that it ran on: data.root=DIR."""
    words = (word.split("=", 1) for word in shlex.split(command))
    return shlex.join(f"{word[0]}=DIR" if len(word) > 1 and word[0] in PLACES else "=".join(word) for word in words)


def commands(runs: Iterable[Run]) -> tuple[str, ...]:
    """One sweep for all runs that form a full grid; one command each for those that do not."""
    items = {frozenset(found.items()) for run in runs if (found := _overrides(run))}
    for key in sorted({key for item in items for key, _ in item}, key=lambda key: (key != "seed", key)):
        items = _joined(items, key)
    return tuple(sorted(_line(dict(item)) for item in items))


def compare_command(study: str, control: str, metric: str, margin: float, confidence: float) -> str:
    """The command of the comparison itself, with the keys that differ from their defaults."""
    given = {"control": control, "metric": metric, "margin": margin, "confidence": confidence}
    changed = {key: value for key, value in given.items() if DEFAULTS[key] != value}
    words = (typed_text(key, value) if isinstance(value, str) else f"{key}={value}" for key, value in changed.items())
    return " ".join(["python -m mpx.compare", typed_text("study", study), *words])


def typed_text(key: str, value: str) -> str:
    """The setting as it must be typed, for the shell and for Hydra: study=default, 'output_dir="my runs"'."""
    if BARE.fullmatch(value):
        return f"{key}={value}"
    escaped = re.sub(r'(\\*)("|\Z)', lambda end: 2 * end[1] + end[2].replace('"', '\\"'), value)  # only before a quote \ means anything
    return shlex.quote(f'{key}="{escaped}"')


def _overrides(run: Run) -> dict[str, tuple[str, ...]] | None:
    """Key -> its one value, or None where the command is not known."""
    try:
        words = shlex.split(run.environment.get("command") or "")
    except ValueError:  # a quotation that does not end
        return None
    if words[:3] != PROGRAM or not all("=" in word for word in words[3:]):
        return None
    pairs = (word.split("=", 1) for word in words[3:])
    return {key: (value,) for key, value in pairs if key not in UNSAID} | {"seed": (str(run.seed),)}


def _joined(items: set[frozenset], key: str) -> set[frozenset]:
    """Join items that agree in all but the values of `key`."""
    alike = defaultdict(set)
    for item in items:
        alike[frozenset((name, values if name != key else None) for name, values in item)].update(dict(item).get(key, ()))
    return {
        frozenset((name, values if name != key else tuple(sorted(found, key=_by_size))) for name, values in rest)
        for rest, found in alike.items()
    }


def _by_size(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdigit() else (0, value)


def _line(item: dict[str, tuple[str, ...]]) -> str:
    sweep = any(len(values) > 1 for values in item.values())
    words = [f"{key}={','.join(item[key])}" for key in sorted(item, key=lambda key: (key == "seed", key))]
    return shlex.join([*PROGRAM, *(["-m"] if sweep else []), *words])
