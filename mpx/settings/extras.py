"""Where conf/ is, and how to get the optional packages of mpx. PyPI has another project of this name, which
has none of them.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# in the wheel, or in the repository
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


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
