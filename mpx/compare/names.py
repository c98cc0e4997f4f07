"""What a setting is called in a table: `precision-sparsity`, and the changes that its group does not share."""

import re

from mpx.compare.comparison import Run


def short(run: Run, changes: str) -> str:
    """The run's setting without what its group shares."""
    own = [change for change in run.changes.split() if change not in changes.split()]
    return " ".join([run.plain, *own])


def label(run: Run, variant: str) -> str:
    """Its setting within the group, which also says what the control changed and it did not."""
    lacking = [change for change in variant.split() if change not in run.changes.split()]
    return short(run, variant) + (f" (without {' '.join(lacking)})" if lacking else "")


def shared_changes(runs: list[Run]) -> str:
    if not runs:
        return ""
    return " ".join(sorted(set.intersection(*(set(run.changes.split()) for run in runs))))


def natural(setting: str) -> list[str | float]:
    """To sort by, numbers by their size: data.batch_size=32 before data.batch_size=128, optimizer.lr=1e-05 before 0.05."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", setting)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]
