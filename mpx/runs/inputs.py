"""What a run's result depends on besides its settings and data: the user's code, and weights and tokenizers in files.

A finished run is taken for the result of the same command. If one of these has changed since, it is not.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpx.runs.contents import digest
from mpx.runs.folder import stored

CODE = ("model._target_", "data._target_", "module._target_", "datamodule._target_")
FILES = ("sparsity.dense_ckpt", "model.pretrained", "model.name", "data.tokenizer")
OF_A_MODEL = (".json", ".safetensors", ".bin", ".model", ".txt", ".tiktoken")  # in a folder of transformers


def inputs(config: dict[str, Any]) -> dict[str, str]:
    """A hash of each file or folder, by the key that names it: `model._target_=my_net.Net`.

    Code outside the current folder is an installed package's and has none. What the code imports is not looked at.
    """
    found = {}
    for key in (*CODE, *FILES):
        group, _, name = key.partition(".")
        value = config.get(group, {}).get(name)
        with suppress(OSError):  # loading it then gives the error
            files = [] if not isinstance(value, str) else _module(value) if key in CODE else _files(os.path.expanduser(value))
            if files:
                found[f"{key}={value}"] = _digest(files)
    return found


def changed(folder: Path, now: dict[str, str]) -> Iterator[str]:
    """Those that differ from what the run in `folder` was begun with. now: of `inputs`."""
    before = stored(folder, "inputs") or {}
    yield from (name for name in now if before.get(name, now[name]) != now[name])


def _module(target: str) -> list[str]:
    """The file of the module in which `package.module.Class` lies, below the current folder."""
    parts = target.replace(":", ".").split(".")
    paths = (os.path.join(*parts[:length]) for length in range(len(parts) - 1, 0, -1))
    return [file for path in paths for file in (f"{path}.py", os.path.join(path, "__init__.py")) if os.path.isfile(file)][:1]


def _files(path: str) -> list[str]:
    """An ordinary file, or those in a folder that models and tokenizers consist of."""
    if not os.path.isdir(path):
        return [path] if os.path.isfile(path) else []
    return [file.path for file in sorted(os.scandir(path), key=lambda file: file.name) if file.name.endswith(OF_A_MODEL) and file.is_file()]


def _digest(files: list[str]) -> str:
    found = hashlib.sha256()
    for path in files:
        found.update(digest(Path(path)))
    return found.hexdigest()[:16]
