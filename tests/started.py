"""A command of mpx in this process, in a folder of its own: what a test of many commands needs, since a process takes seconds to start."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from hydra._internal.hydra import Hydra


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
    """main: that of a front door. Its mode is that of -m alone: to read hydra.mode, Hydra composes the configuration once more."""
    out, err, code, handler = io.StringIO(), io.StringIO(), 0, signal.getsignal(signal.SIGTERM)
    with (
        contextlib.chdir(folder),
        patch.object(sys, "argv", [sys.modules[main.__module__].__file__, *overrides]),
        patch.dict(os.environ, env or {}),
        patch.object(Hydra, "get_mode", lambda self, config_name, overrides: None),
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
