"""What the front doors share: where the configuration lies, and how a mistake in it is shown."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mpx.settings.translate import one_line

PACKAGE = Path(__file__).resolve().parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"  # from the wheel, or from the repository


@contextmanager
def errors_in_one_line(
    keys: Iterable[str] | None = None, program: str = "mpx.train", *, told: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Turn a mistake in the settings into one line on stderr and exit code 2; HYDRA_FULL_ERROR=1 shows the traceback.

    keys: those that `program` takes; None for mpx.train's. told: who else must hear of it.
    """
    try:
        yield
    except Exception as error:
        line = one_line(error) if keys is None else one_line(error, keys, program)
        if line is None or os.environ.get("MPX_TRACEBACK") == "1":
            raise
        print(f"error: {line}", file=sys.stderr)
        if told is not None:
            told(line)
        sys.exit(2)


def let_hydra_raise() -> None:
    """Hydra then raises, where it would print its own message and exit. What the user set is kept in MPX_TRACEBACK."""
    os.environ.setdefault("MPX_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR", "0"))  # set already in a process that mpx started
    os.environ["HYDRA_FULL_ERROR"] = "1"
