"""Files that are there whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside, then rename: a reader never sees half a file, and a full disk or Ctrl-C leaves the old one. Text is UTF-8."""
    beside = path.with_name(f".{os.getpid()}.part")  # a name of no kind: TensorBoard takes any that holds "tfevents" for events
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
