"""A command of mpx in this process, in a folder of its own: what a test of many commands needs, since a
process takes seconds to start.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

HEAVY = ("torch", "pytorch_lightning", "scipy", "numpy", "rich", "matplotlib")


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was printed, without its line breaks."""
        return " ".join(self.out.split())


def start(main: Callable[[], None], folder: Path, *overrides: str, env: dict[str, str] | None = None) -> Done:
    """main: that of a front door."""
    out, err, code, handler = io.StringIO(), io.StringIO(), 0, signal.getsignal(signal.SIGTERM)
    with (
        contextlib.chdir(folder),
        patch.object(sys, "argv", [sys.modules[main.__module__].__file__, *overrides]),
        patch.dict(os.environ, env or {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            signal.signal(signal.SIGTERM, handler)  # a sweep has set its own
    return Done(code, out.getvalue(), err.getvalue())


def light(module: str, folder: Path, *calls: list[str]) -> str:
    """What `python -m module` prints for each of these words in turn, in one process. Fails where that
    imports anything heavy.
    """
    program = (
        "import contextlib, runpy, sys\n"
        f"for words in {list(calls)}:\n"
        "    sys.argv[1:] = words\n"
        "    with contextlib.suppress(SystemExit):\n"
        f"        runpy.run_module('{module}', run_name='__main__', alter_sys=True)\n"
        f"    print('HEAVY', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.count("HEAVY []") == done.stdout.count("HEAVY") == len(calls), (
        done.stdout + done.stderr
    )
    return done.stdout
