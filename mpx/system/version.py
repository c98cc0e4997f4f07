"""Which mpx this is: the release, its source files, and the commit of the checkout that it is imported from.
Imports nothing heavy.
"""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mpx


def version() -> str:
    """In one line, as `--version` prints it."""
    return f"mpx {with_commit(with_digest(Path(mpx.__file__).parent), git())}"


def with_commit(release: str, known: Mapping[str, Any]) -> str:
    """`0.1.0 (git 1a2b3c4d5e, with changes)`. known: as `git` tells, or a record's environment."""
    if known.get("git") is None:
        return release
    return f"{release} (git {str(known['git'])[:10]}{', with changes' if known.get('git_dirty') else ''})"


def with_digest(package: Path) -> str:
    """`0.1.0+1a2b3c4d`: the release, and what tells the Python files of this folder of mpx from others,
    committed or not.
    """
    files = {
        path.relative_to(package).as_posix(): path.read_bytes()
        for path in package.rglob("*.py")
        if path.is_file()
    }
    each = "".join(f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return f"{mpx.__version__}+{hashlib.sha256(each.encode()).hexdigest()[:8]}"


def git() -> dict[str, Any]:
    """The commit of the checkout that mpx is imported from, and whether tracked files have changes."""
    root = Path(mpx.__file__).parents[1]
    if not (root / ".git").exists():
        return {"git": None, "git_reason": "mpx was not imported from a git checkout", "git_dirty": None}
    status = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        output = subprocess.run(status, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"git": None, "git_reason": f"git status failed: {type(error).__name__}", "git_dirty": None}
    return parse_status(output)


def parse_status(output: str) -> dict[str, Any]:
    """`git status --porcelain=v2 --branch`: headers begin with '# ', every other line is a changed file."""
    lines = output.splitlines()
    commit = next(line.split()[2] for line in lines if line.startswith("# branch.oid"))
    if commit == "(initial)":
        return {"git": None, "git_reason": "the checkout has no commit yet", "git_dirty": None}
    return {"git": commit, "git_dirty": any(not line.startswith("# ") for line in lines)}
