"""Memory that a fork shares with its parent but does not have mapped yet: the pages of library files.

A job's record says how much memory it took (`peak_rss_gib`), which must not depend on whether it was forked or started anew.
"""

import ctypes
import mmap
from array import array
from collections.abc import Iterable, Iterator

PRESENT = 1 << 63  # bit of an entry of /proc/self/pagemap; source: Linux, Documentation/admin-guide/mm/pagemap.rst
AROUND = 1 << 16  # bytes that Linux maps at once where one of them is touched (fault_around_bytes)


def resident_files() -> list[int]:
    """One address in each stretch of AROUND bytes of mapped files that this process has in memory; [] where the system does not tell."""
    found: set[int] = set()
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for start, end in _files(maps):
                pages.seek(start // mmap.PAGESIZE * 8)
                entries = array("Q", pages.read((end - start) // mmap.PAGESIZE * 8))
                there = (start + index * mmap.PAGESIZE for index, entry in enumerate(entries) if entry & PRESENT)
                found |= {max(start, address // AROUND * AROUND) for address in there}
    except (OSError, ValueError):
        return []
    return sorted(found)


def _files(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and end of each readable mapping of a file."""
    for line in maps:
        addresses, rights, _, _, inode, *_ = line.split()
        if rights.startswith("r") and inode != "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield start, end


def touch(addresses: list[int]) -> None:
    """Have these pages in the memory of this process."""
    for address in addresses:
        ctypes.c_ubyte.from_address(address).value  # noqa: B018
