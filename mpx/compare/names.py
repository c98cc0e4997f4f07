"""Names of settings in tables: `precision-sparsity`, and the changes that the group does not share."""

import re
from collections import defaultdict
from collections.abc import Iterable

from mpx.compare.run import Changes, Run, text_of

MAX_NAMED = 3  # settings that a line lists


def short(run: Run, changes: Changes) -> str:
    """The run's setting without the group's shared `changes`."""
    return " ".join(filter(None, (run.plain, text_of(without(run.changes, changes)))))


def label(run: Run, variant: Changes) -> str:
    """The run's setting in the group of a control variant, including the control's changes that the run lacks."""
    lacking = text_of(without(variant, run.changes))
    return short(run, variant) + (f" (without {lacking})" if lacking else "")


def labels(runs: Iterable[Run]) -> tuple[dict[str, str], list[str]]:
    """(the user's labels by Run.setting, a line for each label that is not used because it names several settings).

    runs: those of one model and data set. If a setting has several labels, the newest counts.
    """
    given = {run.setting: run.label for run in sorted(runs, key=lambda run: run.environment.get("started_at") or "") if run.label}
    settings: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for name in {run.setting, run.plain, given.get(run.setting, run.setting)}:
            if run.setting not in settings[name]:
                settings[name].append(run.setting)
    taken = {name for name in given.values() if len(settings[name]) > 1}
    lines = []
    for name in sorted(taken):
        several = f"{len(settings[name])} settings ({', '.join(settings[name][:MAX_NAMED])})"
        lines.append(f'label="{name}" is a name of {several}, which keep their own names; give each a label of its own')
    return {setting: name for setting, name in given.items() if name not in taken}, lines


def without(changes: Changes, others: Changes) -> dict[str, str]:
    return {key: value for key, value in changes.items() if others.get(key) != value}


def common(changes: Iterable[Changes]) -> dict[str, str]:
    """The changes that all of them share; {} for an empty input."""
    first, *others = list(changes) or [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def shared_changes(runs: Iterable[Run]) -> dict[str, str]:
    return common(run.changes for run in runs)


def natural(setting: str) -> list[str | float]:
    """A sort key that orders numbers by size: data.batch_size=32 before data.batch_size=128, optimizer.lr=1e-05 before 0.05."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", setting)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]
