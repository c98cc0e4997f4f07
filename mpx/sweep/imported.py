"""Import the modules that every run needs, in the process that a sweep's jobs are forked from.

`heavy` keeps them out of garbage collection: a job's first full collection would copy the pages of all their objects.
"""

import importlib
import os
from contextlib import suppress

from mpx.imports import heavy

ALWAYS = (  # modules that runs import in addition to those of mpx.training.fit
    "sklearn.datasets",
    "tensorboard.summary",
    "torch.utils.serialization",
    "torch.utils.tensorboard",
)
# Only on a machine with a GPU, where runs usually compile and the record shows the device's memory. On a CPU, unused modules would count as
# the job's memory.
WITH_GPU = (
    "matplotlib.backends.backend_agg",
    "timm",
    "torch._inductor.compile_fx",
    "torchvision.transforms.v2",
    "transformers.models.bert.modeling_bert",
)
DRIVER = "/dev/nvidiactl"

with heavy():
    import mpx.runs.outcome
    import mpx.training.fit  # noqa: F401

    for name in ALWAYS + (WITH_GPU if os.path.exists(DRIVER) else ()):
        with suppress(ImportError):  # a job that needs the module reports that it is missing
            importlib.import_module(name)
