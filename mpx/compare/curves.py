"""Training curves of runs: thinned, and averaged over seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpx.record.files import CURVES, ROW, TAGS, rows
from mpx.runs.folder import read_result

SCALE = "numerics/loss_scale"
POINTS = 200  # points per curve: more than a plot's width can show

Curve = tuple[np.ndarray, np.ndarray]  # steps [N], values [N]


@dataclass(frozen=True)
class Band:
    """Mean, minimum and maximum over seeds, on a common grid of steps [N]."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def read_curves(folder: Path) -> dict[str, Curve]:
    """At most POINTS values of each tag in TAGS, as the run in `folder` logged them."""
    curves = {}
    for tag, found in _logged(folder / CURVES).items():
        kept = sorted(found.items())
        steps, values = zip(*(kept[i] for i in spaced(len(kept), POINTS)), strict=True)
        curves[tag] = np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)
    if curves and (ends := _scale_at_ends(folder)):
        logged = dict(zip(*curves.get(SCALE, ((), ())), strict=True))
        whole = sorted((ends | logged).items())
        curves[SCALE] = np.array([step for step, _ in whole], dtype=np.int64), np.array([value for _, value in whole], dtype=np.float64)
    return curves


def _scale_at_ends(folder: Path) -> dict[int, float]:
    """The loss scale before the first step and after the last one, from the record, since a short run may log none or one.

    Empty if the run had no loss scale, or if the record lacks it.
    """
    precision = (read_result(folder) or {}).get("precision") or {}
    scale = precision.get("loss_scale")
    if not isinstance(scale, dict):
        return {}
    found = [precision.get("optimizer_steps"), precision.get("skipped_steps"), scale.get("initial"), scale.get("final")]
    if not all(type(value) in (int, float) for value in found) or found[0] + found[1] < 1:
        return {}
    return {0: found[2], int(found[0] + found[1]): found[3]}


def _logged(path: Path) -> dict[str, dict[int, str]]:
    """Tag -> step -> the newest value, still as text, since thinning drops most of a long curve. Empty if there is no file."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for row in rows(path) if path.is_file() else ():
        if (point := ROW.fullmatch(row)) is not None:  # a damaged row is a gap in the curve
            found[point[1]][int(point[2])] = point[3]
    return found


def spaced(count: int, points: int) -> np.ndarray:
    """At most `points` of `count` positions, evenly spaced, including the first and the last."""
    return np.arange(count) if count <= points else np.linspace(0, count - 1, points).round().astype(int)


def band(curves: Sequence[Curve], *, stepwise: bool = False) -> Band | None:
    """The band of one setting's seeds, on the grid of the longest curve. A seed counts up to its last step. None without finite values.

    Seeds of different lengths are thinned to different steps. Between its own steps a seed lies on the line that joins them; stepwise: it
    keeps its last value, as a loss scale does.
    """
    curves = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in curves]
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return None
    grid = max((steps for steps, _ in curves), key=lambda steps: (steps[-1], len(steps)))
    between = _kept if stepwise else np.interp
    values = np.stack([between(grid, steps, found) for steps, found in curves])  # [seeds, N]
    values[[(grid < steps[0]) | (grid > steps[-1]) for steps, _ in curves]] = np.nan
    count = np.isfinite(values).sum(0)
    grid, values = grid[count > 0], values[:, count > 0]
    return Band(grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), len(curves))


def _kept(grid: np.ndarray, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The newest of the values at each step of the grid."""
    return values[np.searchsorted(steps, grid, side="right").clip(1) - 1]


def bands(folders: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, Band]]:
    """{tag: {setting: band}} of the logged tags. folders: setting -> the folders of its runs."""
    found: dict[str, dict[str, Band]] = {tag: {} for tag in TAGS}
    for setting, places in folders.items():
        curves = [read_curves(place) for place in places]
        for tag in TAGS:
            if (one := band([curve[tag] for curve in curves if tag in curve], stepwise=tag == SCALE)) is not None:
                found[tag][setting] = one
    return found
