"""curves.csv of a run: those of its scalars that a comparison draws, so that it need not read TensorBoard's events."""

from collections.abc import Mapping
from pathlib import Path

from mpx.whole_file import write_whole

CURVES = "curves.csv"
EVENTS = "events.out.tfevents.*"
TAGS = ("train/loss", "val/loss", "numerics/loss_scale", "numerics/gradient_underflow_fraction")
HEADER = "tag,step,value\n"


class CurveFile:
    """Appends a row `tag,step,value` for every value of TAGS. A resumed run first drops the rows that it writes again.

    first_step: the first step that this part of the run may write; 0 where the run begins.
    """

    def __init__(self, folder: Path, first_step: int):
        path = folder / CURVES
        # Where an older mpx wrote the earlier part there are only its events. Curves that lack their beginning would hide them.
        if first_step and not path.is_file() and any(folder.glob(EVENTS)):
            self._file = None
            return
        kept = [row for row in rows(path) if int(row.split(",")[1]) < first_step] if first_step and path.is_file() else []
        write_whole(path, HEADER + "".join(f"{row}\n" for row in kept))
        self._file = path.open("a", buffering=1, encoding="utf-8")  # a line at a time: what a killed run leaves is whole

    def append(self, values: Mapping[str, float], step: int) -> None:
        if self._file is not None:
            self._file.writelines(f"{tag},{step},{float(values[tag])!r}\n" for tag in TAGS if tag in values)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def rows(path: Path) -> list[str]:
    """The rows `tag,step,value` of a curves.csv without its header and without a last line that was cut off."""
    return path.read_text(encoding="utf-8").split("\n")[1:-1]
