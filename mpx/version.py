"""Which mpx this is: the release, and the commit of the checkout that it is imported from. Imports nothing heavy."""

import subprocess
from pathlib import Path
from typing import Any

import mpx


def version() -> str:
    """In one line, as `--version` prints it."""
    found = git()
    if found["git"] is None:
        return f"mpx {mpx.__version__}"
    return f"mpx {mpx.__version__} (git {found['git'][:10]}{', with changes' if found['git_dirty'] else ''})"


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
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid")), "(initial)")
    dirty = any(not line.startswith("# ") for line in lines)
    if commit == "(initial)":
        return {"git": None, "git_reason": "the checkout has no commit yet", "git_dirty": None}
    return {"git": commit, "git_dirty": dirty}
