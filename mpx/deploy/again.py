"""The commands that measure the rows of a deploy.json again."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from mpx.compare.commands import typed_text
from mpx.deploy.record import Row
from mpx.settings.deploy import DEPLOY, QUANTISED
from mpx.settings.values import key_of

PROGRAM = "python -m mpx.deploy"
KNOWN = ("format", "weights", "batch")  # keys whose values a row has


def commands(rows: Iterable[Row], folder: str) -> Iterator[str]:
    """As few as there can be. All but the keys KNOWN is as it was typed for the rows. folder: of the run, as the commands name it."""
    run = typed_text("run", folder)
    calls: dict[tuple[Any, ...], dict[str, list[str]]] = {}  # (typed words, batch sizes) -> format -> weights
    for row in rows:
        fmt, kind, sizes = asked = row.get("format"), row.get("weights"), _sizes(row.get("speed"))
        if isinstance(fmt, str) and isinstance(kind, str) and all(DEPLOY[key].fits(value) for key, value in zip(KNOWN, asked, strict=True)):
            kinds = calls.setdefault((_typed(row), tuple(sizes)), {}).setdefault(fmt, [])
            kinds += [kind] * (kind not in kinds)  # a CPU and a GPU have a row each
    for (typed, sizes), weights in calls.items():
        for kinds in dict.fromkeys(map(tuple, weights.values())):
            formats = [fmt for fmt in weights if tuple(weights[fmt]) == kinds]
            words = [word for word in typed if set(formats) & set(QUANTISED) or key_of(word).split(".")[0] != "finetune"]
            yield " ".join([PROGRAM, run, *map(_listed, KNOWN, (formats, kinds, sizes)), *map(shlex.quote, words)])
    if not calls:
        yield f"{PROGRAM} {run}"


def _sizes(speed: Any) -> list[Any]:
    return [at.get("batch") for at in speed if isinstance(at, dict)] if isinstance(speed, list) else []


def _typed(row: Row) -> tuple[str, ...]:
    """The other words of the command that measured the row; none if that is unknown."""
    environment = row.get("environment")
    command = environment.get("command") if isinstance(environment, dict) else None
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # an unclosed quotation
        words = []
    return tuple(word for word in words[3:] if key_of(word) not in ("run", *KNOWN)) if words[:3] == PROGRAM.split() else ()


def _listed(key: str, values: Iterable[Any]) -> str:
    found = ",".join(map(str, values))
    return shlex.quote(f"{key}=[{found}]" if "," in found else f"{key}={found}")
