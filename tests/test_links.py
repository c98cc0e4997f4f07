"""Links in README.md, docs/ and the experiments' cards lead somewhere, and every page and every file of mpx
can be found.
"""

import re
from fnmatch import fnmatch

import pytest
from documents import CARDS, EXPERIMENTS, PAGES, README, ROOT, anchors, prose, text

DOCUMENTS = [*PAGES, EXPERIMENTS, *CARDS]


def links(page):
    """Targets of links and images within this repository, as (path, anchor)."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [tuple(link.partition("#")[::2]) for link in found if "://" not in link]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}: no such heading"


def test_the_list_of_pages_is_complete():
    listed = {path for path, _ in links(ROOT / "docs" / "README.md") if path.endswith(".md")}
    assert listed == {f"{page.name}" for page in PAGES[1:] if page.name != "README.md"} | {"../README.md"}


def test_the_readme_is_one_page_that_leads_to_all_pages():
    assert len(text(README).splitlines()) <= 110
    reached = {path for path, _ in links(README)}
    assert "docs" in reached


def test_every_experiment_is_listed():
    listed = {path for path, _ in links(EXPERIMENTS)}
    assert listed == {card.parent.name for card in CARDS} | {"../docs/measured.md"}


# rooms whose files each do the same for what their name says
ONE_KIND = {"mpx", "compat", "kernels", "plots", "private", "show"}


@pytest.mark.parametrize(
    "room", sorted(path.parent for path in (ROOT / "mpx").rglob("__init__.py")), ids=lambda room: room.name
)
def test_a_room_says_what_each_of_its_files_is_for(room):
    named = re.findall(r"[\w*]+\.py\b", text(room / "__init__.py"))
    there = {path.name for path in room.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert room.name in ONE_KIND or not [
        name for name in there if not any(fnmatch(name, pattern) for pattern in named)
    ]
