"""Curves of runs, out of their TensorBoard event files: only the tags that are drawn, thinned, and averaged over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpx.compare.events import find_scalars

POINTS = 200  # of one curve: more than a plot's width can show

Curve = tuple[np.ndarray, np.ndarray]  # steps [N], values [N]


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest of the seeds, on a common grid of steps [N]."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def read_curves(folder: Path, tags: Sequence[str], points: int = POINTS) -> dict[str, Curve]:
    """At most `points` values of each tag in the folder's event files. A file cut off in the middle is read up to there.

    A resumed run writes another file; where it repeats steps, its own values count.
    """
    found: dict[str, Curve] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for places in find_scalars(path, tags):
            kept = spaced(len(places.steps), points)
            steps, values = places.steps[kept], places.read(kept)
            before = found.get(places.tag, (steps[:0], values[:0]))
            own = int(np.sum(before[0] < steps[0]))
            found[places.tag] = np.append(before[0][:own], steps), np.append(before[1][:own], values)
    return {tag: _thinned(*found[tag], points) for tag in tags if tag in found}


def spaced(count: int, points: int) -> np.ndarray:
    """At most `points` of `count` positions, evenly, with the first and the last."""
    return np.arange(count) if count <= points else np.linspace(0, count - 1, points).round().astype(int)


def _thinned(steps: np.ndarray, values: np.ndarray, points: int) -> Curve:
    kept = spaced(len(steps), points)
    return steps[kept], values[kept]


def band(curves: Sequence[Curve]) -> Band | None:
    """Seeds of one setting on the grid of the longest; beyond its own last step a seed no longer counts. None without a finite value."""
    curves = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in curves]
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return None
    grid = max((steps for steps, _ in curves), key=lambda steps: (steps[-1], len(steps)))
    rows = np.stack([np.interp(grid, steps, values, left=np.nan, right=np.nan) for steps, values in curves])
    count = np.isfinite(rows).sum(0)
    grid, rows, count = grid[count > 0], rows[:, count > 0], count[count > 0]
    return Band(grid, np.nanmean(rows, 0), np.nanmin(rows, 0), np.nanmax(rows, 0), len(curves))


def bands(folders: Mapping[str, Sequence[Path]], tags: Sequence[str]) -> dict[str, dict[str, Band]]:
    """folders: of each setting's runs. Returns {tag: {setting: band}}, without what was not logged."""
    found: dict[str, dict[str, Band]] = {tag: {} for tag in tags}
    for setting, places in folders.items():
        curves = [read_curves(place, tags) for place in places]
        for tag in tags:
            if (one := band([curve[tag] for curve in curves if tag in curve])) is not None:
                found[tag][setting] = one
    return found
