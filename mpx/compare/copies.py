"""Tell seeds from copies of one run, such as of a loop that never uses its seed."""

from collections.abc import Iterable

from mpx.compare.run import Run
from mpx.compare.statistics import are_shares


def distinct(runs: Iterable[Run]) -> list[Run]:
    """The completed runs of a setting; only the first if all of them agree in every digit of every metric.

    They then say nothing of how seeds scatter, however many they are. Two metrics are needed, one of them finer than a share of samples,
    in which runs may agree by chance.
    """
    completed = [run for run in runs if run.status == "completed"]
    first = completed[0].metrics if completed else {}
    if len(first) < 2 or any(run.metrics != first for run in completed) or all(are_shares([value]) for value in first.values()):
        return completed
    return completed[:1]
