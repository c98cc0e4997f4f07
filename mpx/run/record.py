"""result.json: what everything else reads. Written whole or not at all, also when a run fails."""

import json
import math
import os
from pathlib import Path
from typing import Any

from mpx.run.folder import RESULT

SCHEMA_VERSION = 1
STATUSES = ("completed", "diverged", "failed", "interrupted")


def write_whole(path: Path, text: str) -> None:
    """Write beside, then rename: a reader never sees half a file, and a full disk leaves the old one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_result(folder: Path, record: dict[str, Any]) -> None:
    """Write `record` as the folder's result.json. NaN and infinity, which JSON lacks, become null."""
    assert record["status"] in STATUSES
    write_whole(folder / RESULT, json.dumps(_finite({"schema_version": SCHEMA_VERSION} | record), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
