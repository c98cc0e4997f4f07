"""Tensors and one string kept between runs under a name made from everything that they depend on.

Written beside and renamed, so a reader sees a whole file or none, and two writers do no harm. A file that cannot be read is
made again; a folder that cannot be written is a warning.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

Made = tuple[dict[str, Tensor], str]  # tensors by name, and what goes with them (a tokenizer as JSON)


def key(settings: dict, texts: Iterable[str]) -> str:
    """A name that changes with any setting and any text."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:32]


def cached(folder: str, name: str, make: Callable[[], Made]) -> Made:
    """What `make()` returned the first time this `name` was asked for."""
    path = Path(folder).expanduser() / f"{name}.safetensors"
    found = read(path)
    if found is None:
        found = make()
        write(path, found)
    return found


def read(path: Path) -> Made | None:
    """The content of a cache file; None if it is not there or is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["text"]  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError):
        return None


def write(path: Path, made: Made) -> None:
    """Keep `made`, whole or not at all; warns if the folder cannot be written."""
    from safetensors.torch import save_file

    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(made[0], beside, metadata={"text": made[1]})
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except Exception as error:  # safetensors has its own kinds; none is worth losing a run
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        warnings.warn(
            f"data.cache: cannot write to {path.parent} ({reason}), so the tokenizer is trained again next time: choose another data.cache",
            stacklevel=2,
        )
