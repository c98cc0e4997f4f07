"""For the standard library's forkserver, which imports this file by its name: what every run imports, so that
jobs fork with it.

The server initialises no device and starts no thread, because neither survives a fork. Signals to the sweep's
process group are for the sweep alone: the server must see how its jobs end.
"""

import importlib
import os
from contextlib import suppress

from mpx.system.machine import heavy

MORE = (
    "mpx.training.outcome",
    "mpx.training.fit",
    "sklearn.datasets",
    "tensorboard.summary",
    "torch.utils.serialization",
    "torch.utils.tensorboard",
)

os.setsid()
with heavy():
    for name in MORE:
        with suppress(ImportError):  # a job that needs the module reports that it is missing
            importlib.import_module(name)
