"""The idx format of MNIST and its successors, plain or gzipped.

Source: http://yann.lecun.com/exdb/mnist. Big-endian: two zero bytes, the type (8 = unsigned byte), the number of dimensions,
one 32-bit length per dimension, then the bytes in C order.
"""

import struct
from pathlib import Path

import torch
from torch import Tensor

from mpx.data.files import read_bytes
from mpx.errors import UserError

UNSIGNED_BYTE = 8


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file as uint8 of `shape`. Raises UserError if the file is damaged or has another shape."""
    content = read_bytes(path)
    magic = bytes((0, 0, UNSIGNED_BYTE, len(shape)))
    if content[:4] != magic:
        raise damaged(path, f"starts with {content[:4].hex() or 'nothing'} where an idx file of these has {magic.hex()}")
    start = 4 + 4 * len(shape)
    if len(content) < start:
        raise damaged(path, f"ends inside its header, after {len(content)} of {start} bytes")
    found = struct.unpack(f">{len(shape)}I", content[4:start])
    if found != shape:
        raise damaged(path, f"says that it holds {by(found)} values where {by(shape)} are expected")
    count = len(content) - start
    expected = torch.Size(shape).numel()
    if count != expected:
        raise damaged(path, f"holds {count} values where its header promises {expected}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(shape)


def by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def damaged(path: Path, what: str) -> UserError:
    """The error for a file whose content does not match its name. what: completes the sentence "<path> …"."""
    return UserError(f"data.root: {path} {what}: delete the file and fetch it again (data.download=true)")
