"""Say what this machine can do, and how to get what is missing. Trains nothing, writes nothing, takes seconds.

$ python -m mpx.doctor            # machine, precision modes, accelerations, sparsity, serving, launchers, packages
$ python -m mpx.doctor --version  # of mpx; every other command has it too
"""

import sys

from mpx.doctor.machine import broken, machine
from mpx.doctor.packages import launchers, packages
from mpx.errors import UserError
from mpx.imports import check_compilers_cache
from mpx.machine import keep_within_quota
from mpx.printing import replace_unprintable
from mpx.render.table import print_table
from mpx.settings.front_door import errors_in_one_line, read_words


def main() -> None:
    replace_unprintable()
    try:
        with errors_in_one_line((), "mpx.doctor"):
            if {"-h", "--help"} & set(sys.argv[1:]):
                print(__doc__)
                return
            read_words((), "mpx.doctor")
            if sys.argv[1:]:
                raise UserError(f"{sys.argv[1]}: mpx.doctor takes no settings. Start it as python -m mpx.doctor.")
            check_compilers_cache()
        if (line := broken()) is not None:
            print(f"error: {line}", file=sys.stderr)
            sys.exit(1)
        examine()
    except KeyboardInterrupt:
        sys.exit(130)


def examine() -> None:
    """Heavy imports start here."""
    import torch

    from mpx.doctor.serving import formats, patterns
    from mpx.doctor.training import accelerations, modes

    keep_within_quota(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print_table(machine(), head=False)
    for table in (modes(device), accelerations(device), patterns(device), formats(device), launchers(), packages()):
        print_table(table)


if __name__ == "__main__":
    main()
