"""Write a file whole or not at all."""

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside `path`, then rename, so that no reader sees half a file and a full disk or Ctrl-C leaves the old one. Text is UTF-8."""
    beside = path.with_name(
        f".{os.getpid()}-{secrets.token_hex(4)}.part"
    )  # without "tfevents": TensorBoard reads every file with that in its name
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
