"""Hashes of what a run's result depends on besides its settings: the user's data and code, and weights and
tokenizers in files.

Two data sets may have one name, since the user chooses it or it is that of the file. And a finished run is
taken for the result of the same command; if one of its inputs has changed since, it is not.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpx.errors import UserError
from mpx.runs.folder import read_result, stored
from mpx.settings.data import display_name

DATA = ("path", "val_path", "test_path")
CODE = ("model._target_", "data._target_", "module._target_", "datamodule._target_")
FILES = ("sparsity.dense_ckpt", "model.pretrained", "model.name", "data.tokenizer")
OF_A_MODEL = (".json", ".safetensors", ".bin", ".model", ".txt", ".tiktoken")  # in a folder of transformers


def contents(data: Mapping[str, Any]) -> str | None:
    """A hash of the files of the user's own data. None if these settings name none, or one that cannot be
    read; loading it then gives the error.
    """
    given = [(key, Path(data[key]).expanduser()) for key in DATA if data.get(key) is not None]
    whole = data.get("family") != "image_folder"
    with suppress(OSError):
        parts = [part for key, path in given for part in (key.encode(), *_parts(path, whole=whole))]
        return _hash(parts) if given else None
    return None


def inputs(config: Mapping[str, Any]) -> dict[str, str]:
    """A hash of each file or folder, by the key that names it: `model._target_=my_net.Net`.

    Code outside the current folder is an installed package's and has none. What the code imports is not
    looked at.
    """
    hashes: dict[str, str] = {}
    for key in (*CODE, *FILES):
        group, _, name = key.partition(".")
        value = config.get(group, {}).get(name)
        if isinstance(value, str):
            with suppress(OSError):  # loading it then gives the error
                files = _module(value) if key in CODE else _files(os.path.expanduser(value))
                hashes |= {f"{key}={value}": _hash(map(_digest, files))} if files else {}
    return hashes


def changed(folder: Path, now: Mapping[str, str]) -> Iterator[str]:
    """Those that differ from what the run in `folder` was begun with. now: of `inputs`."""
    before = stored(folder, "inputs") or {}
    yield from (name for name in now if before.get(name, now[name]) != now[name])


def refuse_others(setting_dir: Path, data: Mapping[str, Any], hash_of_contents: str) -> None:
    """Raise UserError if a run in the setting's folder was trained on other contents. data: this run's
    settings of the data.
    """
    for path in sorted(setting_dir.glob("seed*")):
        trained_on = (read_result(path) or {}).get("data") or stored(path, "data") or {}
        if trained_on.get("contents") not in (None, hash_of_contents):
            raise UserError(
                f"data.name={display_name(data)}: {path} was trained on data of this name with other "
                "contents. Give these a name of their "
                "own, data.name=NAME; or, if they replace the others, another study= or if_exists=overwrite."
            )


def _parts(path: Path, *, whole: bool) -> Iterator[bytes]:
    """The hash of a file; for a folder its files' names and hashes (`whole`), or names and sizes: reading a
    million images takes hours.
    """
    if not path.is_dir():
        yield _digest(path)
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        for file in (Path(where, name) for name in sorted(names)):
            yield file.relative_to(path).as_posix().encode()
            yield _digest(file) if whole else str(file.stat().st_size).encode()


def _module(target: str) -> list[Path]:
    """The file of the module in which `package.module.Class` lies, below the current folder."""
    parts = target.replace(":", ".").split(".")
    paths = [Path(*parts[:length]) for length in range(len(parts) - 1, 0, -1)]
    return [file for path in paths for file in (Path(f"{path}.py"), path / "__init__.py") if file.is_file()][
        :1
    ]


def _files(path: str) -> list[Path]:
    if not os.path.isdir(path):
        return [Path(path)] if os.path.isfile(path) else []
    return [
        file for file in sorted(Path(path).iterdir()) if file.name.endswith(OF_A_MODEL) and file.is_file()
    ]


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _hash(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
