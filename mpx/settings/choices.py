"""The choices of each group: the files of conf/, with their keys and the comments that explain them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from mpx.settings.extras import CONF


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
