"""conf/: where it is, and the choices of each group with their keys and the comments that explain them.
And how to get the optional packages: PyPI has another project called mpx, which has none of them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from mpx.settings.fields import FIELDS

PACKAGE = Path(__file__).resolve().parents[1]
# in the wheel, or in the repository
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"

GROUPS = (
    "task",
    "model",
    "data",
    "precision",
    "sparsity",
    "optimizer",
    "schedule",
    "trainer",
    "logger",
    "project",
    "until",
    "experiment",
)
KEYS = (*FIELDS, *GROUPS)  # the keys of mpx.train's words


class Key(NamedTuple):
    group: str  # empty for a key of a command itself
    name: str
    value: str  # as the file has it
    comment: str


def files_of(group: str) -> list[Path]:
    """The files of a group's choices, the usual choice first."""
    usual = dict(re.findall(r"^  - (\w+): (\w+)", (CONF / "train.yaml").read_text(), re.MULTILINE))
    return sorted((CONF / group).glob("*.yaml"), key=lambda path: (path.stem != usual.get(group), path.stem))


def keys_of_file(path: Path, group: str) -> Iterator[Key]:
    text = path.read_text()
    lines = text.splitlines()
    prefix = f"{group}." if group and "# @package _global_" not in lines else ""

    def below(node: yaml.MappingNode, prefix: str) -> Iterator[Key]:
        for name, value in node.value:
            if isinstance(value, yaml.MappingNode) and value.value:
                yield from below(value, f"{prefix}{name.value}.")
            else:
                written = text[value.start_mark.index : value.end_mark.index]
                yield Key(group, prefix + name.value, written, comment_at(lines, value.end_mark.line))

    whole = yaml.compose(text)
    whole.value = [pair for pair in whole.value if pair[0].value not in ("defaults", "hydra")]
    return below(whole, prefix)


def comment_at(lines: list[str], number: int) -> str:
    """The comment at the end of a line, and on the indented lines of comments that follow it. One that
    explains a value, as `asp: train dense`, begins a line of its own.
    """
    comment = lines[number].partition("# ")[2]
    for line in lines[number + 1 :]:
        if not re.match(r" +# ", line):
            break
        more = line.strip(" #")
        comment += ("\n" if re.match(r"\w+: ", more) else " ") + more
    return comment


def description(path: Path) -> str:
    """The comment at the head of a choice's file, or else of its first key."""
    head = [line[2:] for line in path.read_text().splitlines() if re.match(r"# (?!@package)", line)]
    return " ".join(head) or next(keys_of_file(path, "")).comment


def no_such_key(key: str, word: str = "") -> str:
    """The line for a key that only other choices of its group have. word: the setting as typed, if known."""
    group, _, name = key.partition(".")
    files = {path.stem: [key.name for key in keys_of_file(path, group)] for path in files_of(group)}
    having = [choice for choice, names in files.items() if key in names]
    lacking = [choice for choice in files if choice not in having]
    who = f"{group}={lacking[0]}" if len(lacking) == 1 else f"the chosen {group}"
    if not having:
        return f"{who} has no {name}. Leave it out."
    return f"{who} has no {name}; use {group}={having[0]} {word or f'{key}=VALUE'}, or leave it out."


def checkout() -> Path | None:
    """The folder of the repository that mpx is imported from; None for an installed wheel."""
    return (
        PACKAGE.parent
        if CONF.parent == PACKAGE.parent and (PACKAGE.parent / "pyproject.toml").is_file()
        else None
    )


def install(extra: str) -> str:
    """What adds the packages of `extra`, as the subject of a sentence. Beside an installed wheel, pip takes
    its mpx and not PyPI's.
    """
    folder = checkout()
    return f"pip install 'mpx[{extra}]'" if folder is None else f"pip install -e '.[{extra}]' in {folder}"
