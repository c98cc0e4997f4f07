"""Find settings in which runs differ without naming them, because a default changed between versions of mpx, or a loop of the user's."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mpx.compare.run import Run
from mpx.settings.fields import changes_result

OF_A_CHOICE = ("precision", "sparsity")  # groups whose choices have different defaults for the same key
MAX_LISTED = 3  # keys that a note lists


def settings(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of the settings in a record's `config` that change the result, without the seed."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from settings(value, f"{key}.")
        elif changes_result(key):
            yield key, value


def changed(runs: Sequence[Run]) -> str | None:
    """A note on the changed defaults; None without any, or if the settings are unknown. runs: those of one model and data set."""
    found = dict(_changed([run for run in runs if run.config]))
    if not found:
        return None
    each = [f"{key} ({' and '.join(values)})" for key, values in list(found.items())[:MAX_LISTED]]
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    own = any("loop" in run.config for run in runs)  # whose settings the user names
    why = "so a difference may come from that" if own else "a default has changed. Run the older ones again"
    return f"runs differ in {', '.join(each)}{more}, which their names do not say{', ' if own else ': '}{why}"


def _changed(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    """(key, its different values in the runs that do not name it). A key that is missing in one version is not a difference."""
    keys = set.intersection(*(set(run.config) for run in runs)) if runs else ()
    for key in sorted(keys):
        if all(run.config[key] == runs[0].config[key] for run in runs):
            continue
        values: dict[str | None, list[str]] = defaultdict(list)
        for run in runs:
            if not _covers(run.changes, key):
                choice = getattr(run, group) if (group := key.partition(".")[0]) in OF_A_CHOICE else None
                values[choice].append(str(run.config[key]))
        if different := [there for there in values.values() if len(set(there)) > 1]:
            yield key, list(dict.fromkeys(different[0]))


def _covers(names: Iterable[str], key: str) -> bool:
    """Whether one of the names is the key, without its group or with it, or a group that contains it: optimizer contains optimizer.lr."""
    return any(key == name or key.startswith(f"{name}.") or key.endswith(f".{name}") for name in names)
