"""What tests that start and end processes share."""

import time


def wait_for(condition, seconds=120):
    """What `condition()` gives as soon as that is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def alive(pid):
    """Whether the process runs: one that has ended and was not waited for yet does not."""
    try:
        return "(zombie)" not in open(f"/proc/{pid}/status").read()
    except OSError:
        return False
