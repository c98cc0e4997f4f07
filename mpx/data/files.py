"""Find and read the files below `data.root`. Every error is one line that names the file."""

import gzip
import zlib
from pathlib import Path
from types import SimpleNamespace

from mpx.errors import UserError


def folder(cfg: SimpleNamespace) -> Path:
    """`data.root` as a path, relative to the working directory, ~ expanded."""
    return Path(str(cfg.root)).expanduser()


def find(where: Path, *names: str) -> Path | None:
    """The first of `names` that is a file in `where`, plain or with .gz; None if there is none."""
    candidates = (where / (name + end) for name in names for end in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def need(where: Path, *names: str) -> Path:
    """Like `find`, but raises a UserError that names the missing file."""
    if (path := find(where, *names)) is None:
        other = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise UserError(
            f"data.root: {where / names[0]}{other} is missing, plain or .gz: put it there, point data.root at the folder that has it, "
            "or set data.download=true on a machine with internet access"
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The content, unpacked if the name ends in .gz. Raises UserError if it cannot be read or unpacked."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"data file {path} is not a whole gzip file ({error}): delete it and fetch it again") from error
    except OSError as error:
        raise UserError(f"data file {path} cannot be read ({error.strerror or error}): check the path and its permissions") from error


def read_text(path: Path) -> str:
    """The content as text. Raises UserError if it cannot be read or is not UTF-8."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"data file {path} is not UTF-8 text (line {line}): save it as UTF-8") from error
