"""README.md, docs/ and the experiments' cards, as the tests of documents read them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]
# whose commands run in any order; tests/test_your_project.py
EACH_ALONE = [page for page in PAGES if page.name != "your-project.md"]
EXPERIMENTS = ROOT / "experiments" / "README.md"  # the list of them
CARDS = sorted(ROOT.glob("experiments/*/README.md"))


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(language: str, pages: list[Path] = EACH_ALONE) -> list[str]:
    """The fenced blocks in `language`, each once, in the order of the pages."""
    found = (
        block
        for page in pages
        for block in re.findall(rf"^```{language}\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)
    )
    return list(dict.fromkeys(found))


def lines(pages: list[Path] = EACH_ALONE) -> list[str]:
    """The commands of the bash blocks, each once."""
    return list(dict.fromkeys(line for block in blocks("bash", pages) for line in block.splitlines()))


def prose(path: Path) -> str:
    """Without fenced blocks and code spans."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text(path), flags=re.DOTALL)


def section(page: Path, heading: str) -> str:
    """From `heading`, such as "### speed", to the next heading."""
    return re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#|\Z)", text(page), re.DOTALL | re.MULTILINE).group(1)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
