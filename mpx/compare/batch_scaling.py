"""How a setting's speed-up grows with the batch, where a study ran several sizes: each size is a group of its own."""

from collections import defaultdict
from dataclasses import dataclass, replace

from mpx.compare.comparison import Comparison, Group, Speedup
from mpx.compare.names import common, without
from mpx.compare.words import title

KEY = "data.batch_size"


@dataclass(frozen=True)
class Growth:
    """One setting of one model and data set against its control, which has the same batch size, in samples per device."""

    of: str  # resnet18 on cifar10, and what its groups share beyond the batch size, unless all groups do
    setting: str
    speedups: dict[int, Speedup]  # by batch size, ascending


def growths(comparison: Comparison) -> list[Growth]:
    """The settings that have a speed-up at two batch sizes or more: by model, then in one order of settings for all."""
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
    """The control's, with which speeds are compared; None where it has none or several."""
    found = {run.batch_size for row in group.rows if row.setting == group.control for run in row.runs}
    return found.pop() if len(found) == 1 else None


def shared(comparison: Comparison) -> dict[str, str]:
    """The changes that every group has: trainer.max_steps=120."""
    return common(group.changes for group in comparison.groups)
