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

help(mpx.run) and so on say more; docs/python.md has complete examples, docs/README.md all pages.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Names of the library -> where they are. They are imported when they are first used: a command must start without PyTorch.
PUBLIC = {
    "Recorder": "mpx.loop.recorder:Recorder",
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
