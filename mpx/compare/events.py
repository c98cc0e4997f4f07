"""Scalars out of a TensorBoard event file: where they are, without parsing the file; a thousand runs cost little memory and time.

A file is a chain of records: length (uint64), checksum of it (uint32), an Event, checksum (uint32). An Event of a scalar begins with its
wall time (field 1), step (2, not written when zero) and summary (5), that with a value (1), and that with its tag (1). All records are
walked through at once, as arrays; bytes that look like such a record by chance would cost a point of a curve, no more.
Source: tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HEADER, FOOTER = 12, 4  # bytes of a record around its Event
LONGEST = 4096  # bytes; an event of one scalar is far shorter, texts and figures are not
WALL_TIME, STEP, SUMMARY, FIRST, SIMPLE_VALUE = 0x09, 0x10, 0x2A, 0x0A, 0x15  # field number and type, as protobuf writes them


@dataclass(frozen=True)
class Places:
    """Of the events of one tag [N]: their steps, where they begin and end, and where their value does."""

    data: np.ndarray  # bytes of the file
    tag: str
    steps: np.ndarray
    start: np.ndarray
    end: np.ndarray
    value: np.ndarray

    def read(self, kept: np.ndarray) -> np.ndarray:
        """The values of the events with these indices, float64."""
        at = self.value[kept]
        simple = self.data[at] == SIMPLE_VALUE
        read = np.empty(len(at))
        read[simple] = _bytes(self.data, at[simple] + 1, 4).view("<f4")[:, 0]
        for i in np.flatnonzero(~simple):
            read[i] = _of_tensor(self.data[self.start[kept[i]] : self.end[kept[i]]].tobytes(), self.tag)
        return read


def find_scalars(path: Path, tags: Sequence[str]) -> Iterator[Places]:
    """Of each tag that is there. A file cut off in the middle is read up to there."""
    if path.stat().st_size <= HEADER + FOOTER:
        return
    data = np.asarray(np.memmap(path, mode="r"))
    start, end = _records(data)
    stepped = _at(data, start + 9) == STEP
    step, after = _varint(data, start + 10)
    step, at = np.where(stepped, step, 0), np.where(stepped, after, start + 9)
    plausible = np.ones(len(start), dtype=bool)
    for field in (SUMMARY, FIRST):
        plausible &= _at(data, at) == field
        at = _varint(data, at + 1)[1]
    plausible &= _at(data, at) == FIRST
    length = np.where(plausible, _at(data, at + 1), 0)
    for tag in tags:
        name = tag.encode()
        found = np.flatnonzero(length == len(name))
        found = found[(_bytes(data, at[found] + 2, len(name)) == np.frombuffer(name, np.uint8)).all(1)]
        if len(found):
            yield Places(data, tag, step[found], start[found], end[found], at[found] + 2 + len(name))


def _records(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where events begin and end: they start with a wall time, after a length that is none of a text or an image, and fit in the file."""
    start = np.flatnonzero(data[HEADER:] == WALL_TIME) + HEADER
    start = start[_bytes(data, start - HEADER + 2, 6).max(1, initial=0) == 0]
    length = _bytes(data, start - HEADER, 2).view("<u2")[:, 0].astype(np.int64)
    fits = (length < LONGEST) & (start + length + FOOTER <= len(data))
    return start[fits], (start + length)[fits]


def _at(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The byte at each place, as a number that does not overflow; beyond the end, the last one."""
    return data.take(at, mode="clip").astype(np.int64)


def _bytes(data: np.ndarray, at: np.ndarray, count: int) -> np.ndarray:
    """[places, count], uint8."""
    return data.take(at[:, None] + np.arange(count), mode="clip")


def _varint(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """protobuf's integer at each place, seven bits in a byte, and the place after it."""
    value, more = np.zeros(len(at), dtype=np.int64), np.ones(len(at), dtype=bool)
    for shift in range(0, 64, 7):
        byte = _at(data, at)
        value |= np.where(more, byte & 127, 0) << shift
        at = at + more
        more &= byte > 127
        if not more.any():
            break
    return value, at


def _of_tensor(event: bytes, tag: str) -> float:
    """The value in an Event that holds it as a tensor, as `add_scalar(new_style=True)` writes it."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.util.tensor_util import make_ndarray

    return next(float(make_ndarray(value.tensor)) for value in Event.FromString(event).summary.value if value.tag == tag)
