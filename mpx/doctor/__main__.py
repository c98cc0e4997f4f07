"""Say what this machine can do, and how to get what is missing. Trains nothing, writes nothing, takes
seconds.

$ python -m mpx.doctor            # machine, precision modes, accelerations, sparsity, serving, packages
$ python -m mpx.doctor --version  # of mpx; every other command has it too
"""

import importlib
import sys

from mpx.errors import UserError
from mpx.settings.front_door import errors_in_one_line, read_words
from mpx.system.machine import check_compilers_cache, keep_within_quota
from mpx.system.printing import replace_unprintable

TORCH = "pip install --force-reinstall 'torch>=2.11' 'torchvision>=0.26' installs two that fit each other"
NEEDED = {
    "torch": TORCH,
    "torchvision": TORCH,
    "pytorch_lightning": "pip install --force-reinstall pytorch-lightning reinstalls it",
}


def main() -> None:
    replace_unprintable()
    try:
        with errors_in_one_line((), "mpx.doctor"):
            if {"-h", "--help"} & set(sys.argv[1:]):
                print(__doc__)
                return
            read_words((), "mpx.doctor")
            if sys.argv[1:]:
                raise UserError(
                    f"{sys.argv[1]}: mpx.doctor takes no settings. Start it as python -m mpx.doctor."
                )
            check_compilers_cache()
        if (line := broken()) is not None:
            print(f"error: {line}", file=sys.stderr)
            sys.exit(1)
        examine()
    except KeyboardInterrupt:
        sys.exit(130)


def broken() -> str | None:
    """Why mpx cannot run here at all, and what mends that, in one line; None if it can."""
    for name, remedy in NEEDED.items():
        try:
            importlib.import_module(name)
        except Exception as error:  # builds that do not fit each other fail in many ways
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return f"import {name} fails ({reason[:300]}). {remedy}."
    return None


def examine() -> None:
    """Heavy imports start here."""
    from mpx.doctor.tables import tables
    from mpx.render.table import print_table

    keep_within_quota(1)
    for table in tables():
        print_table(table, head=any(column.head for column in table.columns))


if __name__ == "__main__":
    main()
