"""Downloads. Without a network they fail quickly, with one line that names the missing file."""

import hashlib
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from mpx.errors import UserError, first_line
from mpx.whole_file import write_whole

TIMEOUT_S = 20.0  # to connect, and for each read


def torchvision_set(name: str, root: Path, missing: str) -> None:
    """Let torchvision fetch `name` (MNIST, FashionMNIST, CIFAR10) into `root`; it checks the MD5 sums.

    missing: the file that an error names. Raises UserError.
    """
    with exclusive(root), explained(root, missing), default_timeout():
        from torchvision import datasets

        print(f"downloading {name} to {root.absolute()}", flush=True)
        getattr(datasets, name)(str(root), download=True)


def file(url: str, path: Path, sha256: str, convert: Callable[[bytes], bytes] = bytes) -> None:
    """Fetch `url`, convert it and write it to `path`, whole or not at all. Raises UserError, also if the result has another SHA-256."""
    with exclusive(path.parent), explained(path.parent, path.name):
        if path.is_file():  # another process has fetched it meanwhile
            return
        print(f"downloading {path.name} to {path.parent.absolute()}", flush=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = convert(answer.read())
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise OSError(f"{url} has SHA-256 {found[:12]}…, expected {sha256[:12]}…")
        write_whole(path, content)


@contextmanager
def exclusive(where: Path) -> Iterator[None]:
    """Let one process at a time download to the folder `where`, since all ranks of a run find the same file missing.

    Creates the folder, and removes it again if the download fails and leaves nothing in it. Raises UserError.
    """
    from filelock import FileLock

    lock = FileLock(where / ".mpx-download.lock")
    made = [path for path in (where, where.parent) if not path.exists()]
    try:
        known = set(where.iterdir()) if where not in made else set()
        where.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise UserError(
            f"data.root: {where} cannot be written to ({error.strerror or error}) for a download: choose another data.root, "
            "or set data.download=false and put the files there"
        ) from error
    try:
        yield
    except BaseException:
        _remove_empty(set(where.iterdir()) - known, made, Path(lock.lock_file))
        raise
    finally:
        lock.release()


def _remove_empty(new: set[Path], made: list[Path], lock: Path) -> None:
    """After a failed download, remove the lock and those new folders that hold no file. made: folders, innermost first."""
    for path in new:
        if path == lock:
            path.unlink()
        elif path.is_dir() and not any(inner.is_file() for inner in path.rglob("*")):
            shutil.rmtree(path)
    with suppress(OSError):  # a folder holds a downloaded file
        for path in made:
            path.rmdir()


@contextmanager
def explained(where: Path, missing: str) -> Iterator[None]:
    """Turn the errors of a download into a UserError that says which file is missing and what to do."""
    try:
        yield
    except (OSError, HTTPException, RuntimeError) as error:  # HTTPException: the answer ends too early
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the open response, and Python 3.12 warns if it is not closed
        raise UserError(
            f"data.root: {where / missing} is missing and the download failed ({first_line(error)}): put the file there "
            "or point data.root at the folder that has it"
        ) from error


@contextmanager
def default_timeout() -> Iterator[None]:
    """Set a time limit for torchvision's downloads, which have none."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
