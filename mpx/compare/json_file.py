"""Read a JSON file that is not trusted."""

import json
import re
from pathlib import Path
from typing import Any

# Raised while reading a file that does not have mpx's structure.
DAMAGED = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)
MAX_SHOWN = 120  # characters of what is wrong with a file
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of an escaped surrogate pair, or a lone surrogate


def read_json(path: Path) -> Any:
    """Raises OSError, ValueError or RecursionError. Only UTF-8 without lone surrogates, so that every text in it can be written again."""
    text = path.read_bytes().decode("utf-8")  # json.loads would guess UTF-16
    found = json.loads(text)
    if SURROGATE.search(text):
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found


def in_short(error: Exception) -> str:
    """The error in one line: `KeyError: 'speed'`."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{what[:MAX_SHOWN]}…" if len(what) > MAX_SHOWN else what
