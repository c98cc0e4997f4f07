"""A hash of the files of a user's own data. Two data sets may have one name, since the user chooses it or it is that of the file."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpx.errors import UserError
from mpx.runs.folder import read_result, stored
from mpx.settings.data import display_name

KEYS = ("path", "val_path", "test_path")


def contents(data: Mapping[str, Any]) -> str | None:
    """A hash of the files that these settings name. None if they name none, or one that cannot be read; loading it then gives the error."""
    found, given = hashlib.sha256(), [(key, Path(data[key]).expanduser()) for key in KEYS if data.get(key) is not None]
    try:
        for key, path in given:
            found.update(key.encode())
            for part in _parts(path, whole=data.get("family") != "image_folder"):
                found.update(part)
    except OSError:
        return None
    return found.hexdigest()[:16] if given else None


def _parts(path: Path, *, whole: bool) -> Iterator[bytes]:
    """The hash of a file; for a folder its files' names and hashes (`whole`), or names and sizes: reading a million images takes hours."""
    if not path.is_dir():
        yield digest(path)
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        for file in (Path(where, name) for name in sorted(names)):
            yield file.relative_to(path).as_posix().encode()
            yield digest(file) if whole else str(file.stat().st_size).encode()


def digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def refuse_others(setting_dir: Path, data: Mapping[str, Any], mine: str) -> None:
    """Raise UserError if a run in the setting's folder was trained on other contents than `mine`. data: this run's settings of the data."""
    for path in sorted(setting_dir.glob("seed*")):
        theirs = (read_result(path) or {}).get("data") or stored(path, "data") or {}
        if theirs.get("contents") not in (None, mine):
            raise UserError(
                f"data.name={display_name(data)}: {path} was trained on data of this name with other contents. Give these a name of their "
                "own, data.name=NAME; or, if they replace the others, another study= or if_exists=overwrite."
            )
