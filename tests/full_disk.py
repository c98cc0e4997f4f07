"""A disk that is full, for tests of what is said and kept then."""

from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(room: int):
    """Inside, no file may grow beyond `room` bytes, of which the system says that the file is too large."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
