"""Map the pages of library files into a fork, which shares them with its parent but has not mapped them yet.

Without this, a job's recorded memory (`peak_rss_gib`) would depend on whether the job is a fork or a fresh process.
"""

import ctypes
import mmap
from array import array
from collections.abc import Iterable, Iterator

PRESENT = 1 << 63  # a bit of an entry of /proc/self/pagemap; source: Linux, Documentation/admin-guide/mm/pagemap.rst
FAULT_AROUND = 1 << 16  # bytes that Linux maps when one of them is touched (fault_around_bytes)


def resident_files() -> list[int]:
    """One address in each block of FAULT_AROUND bytes of mapped files that is in memory; [] if the system does not report it."""
    found: set[int] = set()
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for start, end in _files(maps):
                pages.seek(start // mmap.PAGESIZE * 8)
                entries = array("Q", pages.read((end - start) // mmap.PAGESIZE * 8))
                there = (start + index * mmap.PAGESIZE for index, entry in enumerate(entries) if entry & PRESENT)
                found |= {max(start, address // FAULT_AROUND * FAULT_AROUND) for address in there}
    except (OSError, ValueError):
        return []
    return sorted(found)


def _files(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The start and end of each readable mapping of a file."""
    for line in maps:
        addresses, rights, _, _, inode, *_ = line.split()
        if rights.startswith("r") and inode != "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield start, end


def touch(addresses: list[int]) -> None:
    """Read a byte at each address, so that the page is mapped."""
    for address in addresses:
        ctypes.c_ubyte.from_address(address).value  # noqa: B018
