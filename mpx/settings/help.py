"""What --help prints: the docstring of the command, and each key with its comment in conf/, its only source.

python -m mpx.train --help           # every group and key
python -m mpx.train --help sparsity  # one group, with what each of its choices is; or one key
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from mpx.errors import UserError, nearest_key
from mpx.settings.check import FIXED, SETTABLE
from mpx.settings.choices import CONF, GROUPS, Key, description, files_of, keys_of_file

WIDTH, COLUMN = 100, 32  # of a line, and of what stands before a comment
NO_KEYS = ("task", "experiment")  # groups whose files only set keys of other groups


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
