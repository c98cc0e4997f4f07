"""Read a JSON file that is not trusted."""

import json
import re
from pathlib import Path
from typing import Any

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character that is spelled as two, or half of none


def read_json(path: Path) -> Any:
    """Raises OSError, ValueError or RecursionError. Only UTF-8 without lone surrogates, so that every text in it can be written again."""
    text = path.read_bytes().decode("utf-8")  # json.loads would guess UTF-16
    found = json.loads(text)
    if SURROGATE.search(text):
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found
