"""conf/: where it is, the choices of each group with their keys, and what --help prints: the docstring of the
command, and each key with its comment in conf/, its only source. And how to get the optional packages: PyPI
has another project called mpx, which has none of them.

python -m mpx.train --help           # every group and key
python -m mpx.train --help sparsity  # one group, with what each of its choices is; or one key
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from mpx.errors import UserError, nearest_key
from mpx.settings.data import OWN_FAMILIES
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
# Keys that a file of a group sets, because the choice of the file decides them; key -> group.
FIXED = {
    "precision.mode": "precision", "sparsity.pattern": "sparsity", "optimizer.name": "optimizer",
    "schedule.name": "schedule",
    "model.family": "model", "model.name": "model", "data.family": "data", "data.name": "data",
    "data.kind": "data",
}  # fmt: skip
# Fixed keys -> choices that let a user set them.
SETTABLE = {
    "model.name": ("timm", "torchvision", "hf"),
    "data.name": OWN_FAMILIES,
    "data.kind": ("synthetic", "custom"),
}
WIDTH, COLUMN = 100, 32  # of a line of --help, and of what stands before a comment
NO_KEYS = ("task", "experiment")  # groups whose files only set keys of other groups


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


def help_text(program: str, docstring: str, topic: str | None = None) -> str:
    """topic: the group or key to explain alone. Raises UserError for one that does not exist."""
    command = program.removeprefix("mpx.")
    files = {group: files_of(group) for group in (GROUPS if command == "train" else ())}
    keys = list(keys_of_file(CONF / f"{command}.yaml", ""))
    for group, paths in files.items():
        keys += keys_of_group(group, paths)
    if topic is None:
        groups = [row(group, ", ".join(path.stem for path in paths)) for group, paths in files.items()]
        head = ["Groups: choose one file each, as group=name. --help GROUP explains it.", "", *groups, ""]
        head = [docstring.strip(), "", *(head if files else ()), "Keys: override as key=value", ""]
    else:
        head = [row(f"{topic}={path.stem}", description(path)) for path in files.get(topic, ())]
        names = [key.name for key in keys]
        keys = [key for key in keys if topic in (key.group, key.name) or key.name.startswith(f"{topic}.")]
        for group, paths in files.items():
            if not keys and topic in (path.stem for path in paths):
                raise UserError(f"--help {topic}: it is a choice of {group}. Use --help {group}.")
        if not head and not keys:
            raise UserError(f"--help {topic}: no such group or key.{nearest_key(topic, [*files, *names])}")
    return "\n".join([*head, *(row(f"{key.name}={key.value}", key.comment) for key in keys)])


def keys_of_group(group: str, paths: list[Path]) -> Iterator[Key]:
    """Each key of any choice once, with the value of the first file that has it."""
    found: dict[str, list[tuple[Path, Key]]] = {}
    for path in paths if group not in NO_KEYS else ():
        for key in keys_of_file(path, group):
            found.setdefault(key.name, []).append((path, key))
    for name, each in found.items():
        choices = [path.stem for path, _ in each]
        if name in FIXED and name not in SETTABLE:
            continue
        comment = next((key.comment for _, key in each if key.comment), "")
        only = f" (of {', '.join(choices)})" if len(choices) <= len(paths) / 2 else ""
        yield each[0][1]._replace(comment=f"{comment}{only}".strip())


def row(name: str, comment: str) -> str:
    """Two columns, of which the second is wrapped. It begins on the next line if the first is too long."""
    first, indent = f"  {name.replace('=???', '=VALUE'):{COLUMN - 2}}", " " * (COLUMN + 2)
    wrap = textwrap.TextWrapper(WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    second = f"\n{indent}".join(part for line in comment.split("\n") for part in wrap.wrap(line))
    return f"{first}  {second}" if len(first) <= COLUMN else f"{first}\n{indent}{second}"


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
