"""Give a project that says `import lightning` the classes of pytorch_lightning.

The package lightning holds second copies of pytorch_lightning and lightning_fabric, and a Trainer of one copy
takes no module of the other.
"""

import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

COPIES = {"lightning.pytorch": "pytorch_lightning", "lightning.fabric": "lightning_fabric"}


class Lightning(ModuleType):
    """The package lightning itself: the names of pytorch_lightning, and Fabric."""

    def __getattr__(self, name: str) -> Any:
        if f"lightning.{name}" in COPIES:
            return import_module(f"lightning.{name}")
        return getattr(import_module("lightning_fabric" if name == "Fabric" else "pytorch_lightning"), name)


class OneLightning(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name == "lightning" or name.startswith(tuple(COPIES))
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == "lightning":
            return Lightning(spec.name)
        copy = ".".join(spec.name.split(".")[:2])
        module = import_module(COPIES[copy] + spec.name.removeprefix(copy))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__  # importlib has put it in the place of the module's own
        if spec is not None and not isinstance(module, Lightning):
            module.__spec__ = spec.loader_state


FINDER = OneLightning()


def use_one_lightning() -> None:
    """From now on `import lightning` gives these, unless it has been imported already, or is a package of the
    project itself.
    """
    # without an origin if it is a folder that has no code
    local = PathFinder.find_spec("lightning", [os.getcwd()])
    if FINDER not in sys.meta_path and (local is None or local.origin is None):
        sys.meta_path.insert(0, FINDER)
