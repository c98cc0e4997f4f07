"""Private API of Python 3.11 to 3.13."""

import atexit
import threading


def finish() -> None:
    """Wait for threads and call what was registered with atexit, as Python does at its end. os._exit does neither."""
    threading._shutdown()
    atexit._run_exitfuncs()
