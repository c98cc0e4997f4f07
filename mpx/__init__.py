"""mpx: which precision and sparsity setting is fastest on this machine, at no loss of accuracy?

Commands, each with --help and --version:

    mpx-train precision=amp sparsity=2of4    train, test and record one setting; -m: a sweep    (python -m mpx.train)
    mpx-compare study=default                compare the runs of a study: tables, verdict, report (python -m mpx.compare)
    mpx-deploy run=FOLDER                    serve a finished run, and measure that               (python -m mpx.deploy)
    mpx-bench what=formats                   measure this machine                                 (python -m mpx.bench)
    mpx-doctor                               say what this machine can do                         (python -m mpx.doctor)

From Python:

    mpx.run(["precision=amp"])               train one setting here; returns its record
    mpx.judge("default")                     compare the runs of a study; returns the comparison
    mpx.Recorder(setting=…)                  record a PyTorch loop of one's own as such a run
    mpx.UserError                            the error for whatever a user can mend, in one line
    from mpx.compat import amp, ASP          successors of NVIDIA apex's amp and ASP
    mpx.compat.transformers                  callbacks for transformers.Trainer, which an import of it gives

For a Lightning Trainer of one's own, each usable alone:

    trainer = pl.Trainer(
        plugins=mpx.Precision("amp"),
        callbacks=[mpx.Sparsity("2of4", recipe="asp"), mpx.Throughput(), mpx.Numerics(), mpx.Record(study="mine")],
    )

help(mpx.run) and so on say more; docs/python.md and docs/your-project.md have complete examples, docs/README.md all pages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpx.errors import UserError as UserError
    from mpx.from_python import judge as judge
    from mpx.from_python import run as run
    from mpx.library.precision import Precision as Precision
    from mpx.library.record import Record as Record
    from mpx.library.sparsity import Sparsity as Sparsity
    from mpx.loop.recorder import Recorder as Recorder
    from mpx.measure.throughput import Throughput as Throughput
    from mpx.precision.numerics import Numerics as Numerics

__version__ = "0.1.0"

# Names of the library -> where they are. They are imported when they are first used: a command must start without PyTorch.
PUBLIC = {
    "Numerics": "mpx.precision.numerics:Numerics",
    "Precision": "mpx.library.precision:Precision",
    "Record": "mpx.library.record:Record",
    "Recorder": "mpx.loop.recorder:Recorder",
    "Sparsity": "mpx.library.sparsity:Sparsity",
    "Throughput": "mpx.measure.throughput:Throughput",
    "UserError": "mpx.errors:UserError",
    "judge": "mpx.from_python:judge",
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
