"""End the workers and jobs of a sweep whose first process is killed: each job writes its record and can be resumed."""

import os
import signal
import threading
import time

THREAD = "end-with-parent"
INTERVAL = 1.0  # seconds between two checks


def end_with_parent(parent: int) -> None:
    """Start a thread that sends this process SIGTERM when the process `parent` has died.

    Does nothing if `parent` is not this process's parent: the ranks of a distributed run end with rank 0.
    """
    if os.getppid() != parent or any(thread.name == THREAD for thread in threading.enumerate()):
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(INTERVAL)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name=THREAD, daemon=True).start()
