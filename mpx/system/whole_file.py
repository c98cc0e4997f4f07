"""Write a file, or a folder of files, whole or not at all; and say it in one line where output_dir cannot be
written.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpx.errors import UserError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside `path`, then rename, so that no reader sees half a file and a full disk or Ctrl-C leaves
    the old one. Text is UTF-8.
    """
    beside = _beside(path)
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the name that its reader knows
    finally:
        beside.unlink(missing_ok=True)


def try_writing(folder: Path) -> None:
    """Raise the OSError with which writing in `folder` would fail: before hours of work, not after them."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


@contextmanager
def below_output_dir(folder: Path) -> Iterator[None]:
    """Raise UserError where the block cannot write into `folder`, which lies below output_dir."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise UserError(
            f"output_dir: cannot write {where} ({error.strerror}). Choose another folder with output_dir=DIR."
        ) from error


def own_folder(path: Path) -> Path:
    """Make the folder if it is not there. A link in its place is removed, since what is written there would
    change a folder elsewhere.
    """
    if path.is_symlink():
        path.unlink()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `path` and all that is in it when the block ends. After an
    error, `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside, old = _beside(path), _beside(path)
    try:
        beside.mkdir()
        yield beside
        with suppress(FileNotFoundError):
            os.rename(path, old)
        try:
            os.rename(beside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.rename(old, path)
            raise
    finally:
        for folder in (beside, old):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            path.parent.rmdir()  # where nothing came into it


def _beside(path: Path) -> Path:
    """Without "tfevents" in its name: TensorBoard reads every file that has it."""
    return path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.part")
