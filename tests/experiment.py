"""The scripts of experiments/ as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from documents import ROOT

EXPERIMENTS = ROOT / "experiments"


def script(path: str) -> ModuleType:
    """experiments/<path>, which finds the files beside it, as Python starts it.

    What it imports from experiments/ is forgotten afterwards, because several experiments have files of one
    name.
    """
    spec = importlib.util.spec_from_file_location(f"experiments_{Path(path).stem}", EXPERIMENTS / path)
    module = importlib.util.module_from_spec(spec)
    searched, before = list(sys.path), set(sys.modules)
    sys.path.insert(0, str((EXPERIMENTS / path).parent))
    sys.modules[spec.name] = module  # where its data classes look their annotations up
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = searched
        for name in sys.modules.keys() - before:
            if str(EXPERIMENTS) in (getattr(sys.modules[name], "__file__", None) or ""):
                del sys.modules[name]
    return module
