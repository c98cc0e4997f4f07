"""Speed-up of each setting by batch size. In a study with several batch sizes, each size forms a group."""

from collections import defaultdict
from dataclasses import dataclass, replace

from mpx.compare.comparison import Comparison, Group, Speedup
from mpx.compare.names import common, without
from mpx.compare.words import title

KEY = "data.batch_size"


@dataclass(frozen=True)
class Growth:
    """The speed-ups of one setting of a model and data set against the control with the same batch size (samples per device)."""

    of: str  # resnet18 on cifar10, and the changes that its groups share, without those that all groups share
    setting: str
    speedups: dict[int, Speedup]  # by batch size, ascending


def growths(comparison: Comparison) -> list[Growth]:
    """The settings with a speed-up at two or more batch sizes, sorted by model and then by one order of settings."""
    found: dict[tuple[str, str], dict[int, Speedup]] = defaultdict(dict)
    unsaid = shared(comparison)
    for group in comparison.groups:
        if (size := _batch_size(group)) is not None:
            changes = {key: value for key, value in without(group.changes, unsaid).items() if key != KEY}
            for row in group.rows:
                if row.speedup is not None:
                    found[title(replace(group, changes=changes)), row.setting][size] = row.speedup
    models, settings = (list(dict.fromkeys(part)) for part in zip(*found, strict=True)) if found else ((), ())
    pairs = [(of, setting) for of in models for setting in settings if len(found.get((of, setting), ())) > 1]
    return [Growth(of, setting, dict(sorted(found[of, setting].items()))) for of, setting in pairs]


def sizes(lines: list[Growth]) -> list[int]:
    return sorted({size for line in lines for size in line.speedups})


def _batch_size(group: Group) -> int | None:
    """The control's batch size; None if its runs have several or none."""
    found = {run.batch_size for row in group.rows if row.setting == group.control for run in row.runs}
    return found.pop() if len(found) == 1 else None


def shared(comparison: Comparison) -> dict[str, str]:
    """The changes that every group has, such as trainer.max_steps=120."""
    return common(group.changes for group in comparison.groups)
