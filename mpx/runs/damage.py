"""Find damaged checkpoints by the checksums that PyTorch writes into them, and the checkpoint of a run to continue from.

torch.load does not compare the checksums. Imports nothing heavy.
"""

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from mpx.errors import UserError


def damage(path: Path) -> str | None:
    """What is wrong with the file, or None. Reads all of it."""
    try:
        with path.open("rb") as file:  # for a path that may not be read, is_zipfile only says no
            if not zipfile.is_zipfile(file):
                return "not a whole zip archive, which every checkpoint is"
            with zipfile.ZipFile(file) as archive:
                part = archive.testzip()
    except Exception as error:  # in a damaged archive zipfile can raise nearly anything
        return " ".join(f"{error or type(error).__name__}".split())[:160]
    return None if part is None else f"the checksum of {part} does not match"


def first_whole(paths: Iterable[Path]) -> Path | None:
    """The first of `paths` that is a whole checkpoint; None if no file is there. Says which damaged ones it leaves out.

    Raises UserError if all are damaged.
    """
    there = [path for path in paths if path.is_file()]
    for path in there:
        if (reason := damage(path)) is None:
            return path
        print(f"{path} is damaged ({reason}) and left out", file=sys.stderr, flush=True)
    if there:
        raise UserError(
            f"{there[0].parent.parent} has no whole checkpoint to continue from. Use if_exists=overwrite to start the run again, or "
            "if_exists=new to start one beside it."
        )
    return None
