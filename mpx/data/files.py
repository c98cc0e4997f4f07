"""Find, read and download the files below `data.root`. Every error is one line that names the file."""

import gzip
import hashlib
import socket
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace

from mpx.errors import UserError, first_line
from mpx.system.whole_file import write_whole

TIMEOUT_S = 20.0  # of a download: to connect, and for each read


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
        raise missing(where / names[0], f"{other} is missing, plain or .gz")
    return path


def missing(path: Path, what: str = " is missing") -> UserError:
    """The error for a file that data.download=false does not fetch."""
    return UserError(
        f"data.root: {path}{what}: put it there, point data.root at the folder that has it, "
        "or set data.download=true on a machine with internet access"
    )


def read_bytes(path: Path) -> bytes:
    """The content, unpacked if the name ends in .gz. Raises UserError if it cannot be read."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"data file {path} cannot be read ({reason}): check its permissions, or fetch it again"
        ) from error


def read_text(path: Path) -> str:
    """The content as text. Raises UserError as `read_bytes`, or if it is not UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"data file {path} is not UTF-8 text ({error.reason}): save it as UTF-8") from error


def download(url: str, path: Path, sha256: str, convert: Callable[[bytes], bytes] = bytes) -> None:
    """Fetch `url`, convert it and write it to `path`, whole or not at all.

    Raises UserError, also if the result has another SHA-256.
    """
    with downloading(path):
        if path.is_file():  # another process has fetched it meanwhile
            return
        with urllib.request.urlopen(url) as answer:
            content = convert(answer.read())
        digest = hashlib.sha256(content).hexdigest()
        if digest != sha256:
            raise OSError(f"{url} has SHA-256 {digest[:12]}…, expected {sha256[:12]}…")
        write_whole(path, content)


@contextmanager
def downloading(path: Path) -> Iterator[None]:
    """Around a download of `path`: one process at a time, since all ranks of a run need the same file, with a
    time limit.

    Raises UserError that says which file is missing and what to do.
    """
    from filelock import FileLock

    before = socket.getdefaulttimeout()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".mpx-download.lock"):
            print(f"downloading {path.name} to {path.parent.absolute()}", flush=True)
            socket.setdefaulttimeout(TIMEOUT_S)  # torchvision's downloads have no limit of their own
            yield
    except (OSError, HTTPException, RuntimeError) as error:  # HTTPException: the answer ends too early
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the open response
        raise UserError(
            f"data.root: {path} is missing and the download failed ({first_line(error)}): put the file there "
            "or point data.root at the folder that has it"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
