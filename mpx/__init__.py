"""mpx: which precision and sparsity setting trains this model fastest, at no loss of accuracy, on this
machine?

Commands. Each has --help and --version; mpx-train is the same as python -m mpx.train, and so on:

    mpx-train precision=amp sparsity=2of4    train, test and record one setting; with -m, a sweep of settings
                                             and seeds
    mpx-compare study=default                compare the runs of a study: tables, verdict, report
    mpx-deploy run=FOLDER                    measure a finished run as it would be served
    mpx-bench what=formats                   measure the limits of this machine
    mpx-doctor                               say what this machine can do, and how to get what is missing

From Python:

    mpx.run(["precision=amp"])               train one setting; returns its record
    mpx.judge("default")                     compare the runs of a study; returns the comparison
    mpx.list_runs("outputs")                 all runs as flat records, as for pandas.DataFrame
    mpx.Recorder(setting=…)                  record any PyTorch loop as a run
    mpx.UserError                            the error for every mistake that a user can fix, in one line

In your own Lightning Trainer, each part without the others:

    trainer = pl.Trainer(
        plugins=mpx.Precision("amp"),                # number format and loss scaling
        callbacks=[
            mpx.Sparsity("2of4", recipe="asp"),      # prunes, and holds the masks
            mpx.Throughput(),                        # samples/s
            mpx.Numerics(),                          # gradients that vanish or overflow
            mpx.Record(study="mine"),                # result.json, which mpx-compare reads
        ],
    )

In other libraries' loops:

    from mpx.compat import amp, ASP                                              # successors of NVIDIA apex's
                                                                                 amp and ASP
    from mpx.compat.transformers import RecorderCallback, SparsityCallback       # for transformers.Trainer

Read on: help(mpx.run), help(mpx.Recorder), help(mpx.Sparsity) and so on list the arguments. Complete examples
are in docs/python.md and docs/your-project.md; docs/README.md lists all pages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpx.compare.listing import list_runs as list_runs
    from mpx.errors import UserError as UserError
    from mpx.from_python import judge as judge
    from mpx.from_python import run as run
    from mpx.measure.throughput import Throughput as Throughput
    from mpx.precision.lightning_precision import Precision as Precision
    from mpx.precision.numerics import Numerics as Numerics
    from mpx.record.lightning_record import Record as Record
    from mpx.record.recorder import Recorder as Recorder
    from mpx.sparsity.lightning_sparsity import Sparsity as Sparsity

__version__ = "0.1.0"

# Names of the library -> where they are. They are imported when they are first used: a command must start
# without PyTorch.
PUBLIC = {
    "Numerics": "mpx.precision.numerics:Numerics",
    "Precision": "mpx.precision.lightning_precision:Precision",
    "Record": "mpx.record.lightning_record:Record",
    "Recorder": "mpx.record.recorder:Recorder",
    "Sparsity": "mpx.sparsity.lightning_sparsity:Sparsity",
    "Throughput": "mpx.measure.throughput:Throughput",
    "UserError": "mpx.errors:UserError",
    "judge": "mpx.from_python:judge",
    "list_runs": "mpx.compare.listing:list_runs",
    "run": "mpx.from_python:run",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'mpx' has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    globals()[name] = found = getattr(import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
