"""A run's curves.csv: the scalars that a comparison draws, so that it need not read TensorBoard's events."""

import re
from collections.abc import Mapping
from pathlib import Path

from mpx.whole_file import write_whole

CURVES = "curves.csv"
TAGS = ("train/loss", "val/loss", "numerics/loss_scale", "numerics/gradient_underflow_fraction")
HEADER = "tag,step,value\n"
ROW = re.compile(r"([\w/]+),(\d{1,18}),(-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)|nan)", re.ASCII)  # tag, step, value


class CurveFile:
    """Appends a row `tag,step,value` for every value of TAGS. A resumed run first removes the rows that it will write again.

    first_step: the first step that this part of the run may write; 0 for a new run.
    """

    def __init__(self, folder: Path, first_step: int):
        path = folder / CURVES
        found = map(ROW.fullmatch, rows(path)) if first_step and path.is_file() else ()
        kept = [row[0] for row in found if row is not None and int(row[2]) < first_step]  # a damaged row becomes a gap in the curve
        write_whole(path, HEADER + "".join(f"{row}\n" for row in kept))
        self._file = path.open("a", buffering=1, encoding="utf-8")  # line by line, so that a killed run leaves whole lines

    def append(self, values: Mapping[str, float], step: int) -> None:
        self._file.writelines(f"{tag},{step},{float(values[tag])!r}\n" for tag in TAGS if tag in values)

    def close(self) -> None:
        self._file.close()


def rows(path: Path) -> list[str]:
    """The rows `tag,step,value` of a curves.csv, without the header and without an incomplete last line."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[1:-1]
