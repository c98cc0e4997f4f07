"""Cache tensors and one string between runs, in a file whose name is a hash of everything that they depend on.

A damaged file is reported and made again. A folder that cannot be written to causes a warning.
"""

import hashlib
import json
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from torch import Tensor

from mpx.whole_file import write_whole

Made = tuple[dict[str, Tensor], str]  # tensors by name, and a string that belongs to them (a tokenizer as JSON)


def key(settings: dict, texts: Iterable[str]) -> str:
    """A hash of all settings and texts, and of the library's version, on which it depends what a tokenizer learns from them."""
    digest = hashlib.sha256(json.dumps(settings | {"tokenizers": version("tokenizers")}, sort_keys=True).encode())
    for text in texts:
        content = text.encode()
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()[:32]


def cached(folder: str, name: str, make: Callable[[], Made]) -> Made:
    """Return the content of the file `name` in `folder`. If it is missing or damaged, call `make` and write it."""
    path = Path(folder).expanduser() / f"{name}.safetensors"
    found = None
    if path.is_file():
        try:
            found = read(path)
        except Exception as error:  # a damaged file can raise nearly anything
            print(f"data.cache: {path} is damaged ({' '.join(str(error).split())[:100]}) and is made again", file=sys.stderr, flush=True)
    if found is None:
        found = make()
        write(path, found)
    return found


def read(path: Path) -> Made:
    """The content of a cache file. Raises any exception if it is damaged."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    found, _, text = about["text"].partition(" ")
    if found != checksum(tensors, text):
        raise ValueError("its checksum does not match")
    return tensors, text


def checksum(tensors: dict[str, Tensor], text: str) -> str:
    """The CRC-32 of a file's content, since safetensors has none."""
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        found = zlib.crc32(tensors[name].contiguous().numpy(), zlib.crc32(name.encode(), found))
    return str(found)


def write(path: Path, made: Made) -> None:
    """Write `made`, whole or not at all. Warns if the folder cannot be written."""
    from safetensors.torch import save

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(made[0], metadata={"text": f"{checksum(*made)} {made[1]}"}))
    except OSError as error:
        warnings.warn(
            f"data.cache: cannot write to {path.parent} ({error.strerror or error}), so the tokenizer is trained again next time: "
            "choose another data.cache",
            stacklevel=2,
        )
