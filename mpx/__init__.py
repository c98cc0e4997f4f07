"""mpx: which precision and sparsity setting is fastest on this machine, at no loss of accuracy?

The commands: `python -m mpx.train`, `python -m mpx.compare`, `python -m mpx.deploy`, `python -m mpx.bench`, `python -m mpx.doctor`;
each lists its settings with --help.

The parts of mpx for a Trainer of your own, each usable alone:

    trainer = pl.Trainer(
        plugins=mpx.Precision("amp"),
        callbacks=[mpx.Sparsity("2of4", recipe="asp"), mpx.Throughput(), mpx.Numerics(), mpx.Record(study="mine")],
    )

docs/your-project.md begins with both. Scripts written for NVIDIA apex import mpx.compat.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpx.library.precision import Precision as Precision
    from mpx.library.record import Record as Record
    from mpx.library.sparsity import Sparsity as Sparsity
    from mpx.measure.throughput import Throughput as Throughput
    from mpx.precision.numerics import Numerics as Numerics

__version__ = "0.1.0"

PUBLIC = {  # name -> where it is; imported when it is first asked for, because most of it needs PyTorch
    "Numerics": "mpx.precision.numerics:Numerics",
    "Precision": "mpx.library.precision:Precision",
    "Record": "mpx.library.record:Record",
    "Sparsity": "mpx.library.sparsity:Sparsity",
    "Throughput": "mpx.measure.throughput:Throughput",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'mpx' has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
