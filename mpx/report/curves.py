"""Curves of runs, out of their TensorBoard event files: only the tags that are drawn, thinned, and averaged over seeds.

A file is a chain of records: length (uint64), checksum of it (uint32), an Event, checksum (uint32). The wanted ones are found by how an
Event of a scalar begins; only those that survive thinning are parsed, so a thousand runs cost little memory and time.
Source: tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto.
"""

import mmap
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util.tensor_util import make_ndarray

POINTS = 200  # of one curve: more than a plot's width can show
HEADER, FOOTER = 12, 4  # bytes of a record around its Event
VARINT = rb"[\x80-\xff]*[\x00-\x7f]"  # an integer of protobuf's
LONGEST = 4096  # bytes; an event of one scalar is far shorter, texts and figures are not

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
    found: dict[str, tuple[list[int], list[float]]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for tag, (steps, values) in _read_file(path, tags, points).items():
            before = found.get(tag, ([], []))
            kept = sum(step < steps[0] for step in before[0])
            found[tag] = (before[0][:kept] + steps, before[1][:kept] + values)
    return {tag: _thinned(np.array(steps), np.array(values, dtype=float), points) for tag, (steps, values) in found.items()}


def _read_file(path: Path, tags: Sequence[str], points: int) -> dict[str, tuple[list[int], list[float]]]:
    if path.stat().st_size == 0:
        return {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        places = _places(data, [tag.encode() for tag in tags])
        return {tag: _parsed(data, found, tag, points) for tag, found in zip(tags, places, strict=True) if found}


def _places(data: mmap.mmap, tags: Sequence[bytes]) -> list[list[tuple[int, int]]]:
    """Where the events of each tag begin and end. Bytes that look like an event by chance would cost a point of a curve, no more."""
    length_at = struct.Struct("<Q").unpack_from
    places: list[list[tuple[int, int]]] = [[] for _ in tags]
    for found in _pattern(tuple(tags)).finditer(data):
        start = found.start()
        if start < HEADER:
            continue
        (length,) = length_at(data, start - HEADER)
        if length < LONGEST and start + length + FOOTER <= len(data):
            places[found.lastindex - 1].append((start, start + length))
    return places


@cache
def _pattern(tags: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """An Event: wall time (field 1), step (2, not written when zero), summary (5) with a value (1) whose tag (1) is one of `tags`."""
    marks = b"|".join(b"(\n" + re.escape(bytes([len(tag)]) + tag) + b")" for tag in tags)
    start = rb"\x09.{8}(?:\x10" + VARINT + rb")?\x2a" + VARINT + rb"\x0a" + VARINT
    return re.compile(start + b"(?:" + marks + b")", re.DOTALL)


def _parsed(data: mmap.mmap, places: list[tuple[int, int]], tag: str, points: int) -> tuple[list[int], list[float]]:
    steps, values = [], []
    for i in spaced(len(places), points):
        event = Event.FromString(data[slice(*places[i])])
        for value in event.summary.value:
            if value.tag == tag:
                steps.append(event.step)
                values.append(value.simple_value if value.HasField("simple_value") else float(make_ndarray(value.tensor)))
    return steps, values


def spaced(count: int, points: int) -> Iterable[int]:
    """At most `points` of `count` positions, evenly, with the first and the last."""
    return range(count) if count <= points else np.linspace(0, count - 1, points).round().astype(int).tolist()


def _thinned(steps: np.ndarray, values: np.ndarray, points: int) -> Curve:
    kept = np.asarray(spaced(len(steps), points), dtype=int)
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
