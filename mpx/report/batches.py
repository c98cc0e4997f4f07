"""How a setting's speed-up grows with the batch, where a study ran several sizes: its groups, one for each, show that one by one."""

from collections import defaultdict
from dataclasses import dataclass, replace

from mpx.report.comparison import Comparison, Group, Speedup
from mpx.report.words import title

KEY = "data.batch_size="


@dataclass(frozen=True)
class Growth:
    """One setting of one model and data set against its control at each batch size, samples per device: the same for both."""

    of: str  # resnet18 on cifar10, and what its groups share beyond the batch size
    setting: str
    speedups: dict[int, Speedup]  # by batch size, ascending


def growths(comparison: Comparison) -> list[Growth]:
    """Of the settings that have a speed-up at two batch sizes or more, in the order of the groups."""
    found: dict[tuple[str, str], dict[int, Speedup]] = defaultdict(dict)
    for group in comparison.groups:
        if (size := _batch_size(group)) is not None:
            for row in group.rows:
                if row.speedup is not None:
                    found[_of(group), row.setting][size] = row.speedup
    return [Growth(of, setting, dict(sorted(by_size.items()))) for (of, setting), by_size in found.items() if len(by_size) > 1]


def sizes(lines: list[Growth]) -> list[int]:
    return sorted({size for line in lines for size in line.speedups})


def _batch_size(group: Group) -> int | None:
    """The control's, with which speeds are compared; None where it has none or several."""
    found = {run.batch_size for row in group.rows if row.setting == group.control for run in row.runs}
    return found.pop() if len(found) == 1 else None


def _of(group: Group) -> str:
    return title(replace(group, changes=" ".join(change for change in group.changes.split() if not change.startswith(KEY))))
