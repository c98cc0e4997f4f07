"""When the process that started a sweep is killed, its workers and jobs end too, in order: each writes its record and can be resumed."""

import os
import signal
import threading
import time

PARENT = "MPX_SWEEP_PARENT"  # environment variable: the process that waits for this job
SECONDS = 1.0  # between two looks


def end_with_parent(parent: int) -> None:
    """From now on, send this process SIGTERM once `parent` has died. Does nothing where `parent` did not start this process itself:
    the ranks of a distributed run end with the first one."""
    if os.getppid() != parent or any(thread.name == PARENT for thread in threading.enumerate()):
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name=PARENT, daemon=True).start()
