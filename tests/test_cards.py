"""The card of an experiment: generated from results.csv, the same each time, and never in the way of what
people wrote around it.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from experiment import EXPERIMENTS, script
from made_comparison import made_comparison, made_group
from made_runs import served

from mpx.compare.table import results_csv

cards = script("card.py")
CARDS = [
    card
    for card in sorted(EXPERIMENTS.glob("*/README.md"))
    if "<!-- results" in card.read_text(encoding="utf-8")
]
CARD = (
    "# Question\n\nWhy?\n\n<!-- results -->\nold figures\n<!-- end of results -->\n\n**What we "
    "learnt.** Much.\n"
)


@pytest.fixture
def question(tmp_path):
    """A folder with a card and the runs of a made study."""
    folder = tmp_path / "question"
    folder.mkdir()
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    runs = made_comparison(tmp_path, made_group(seeds=4)).runs
    runs = [
        replace(run, served=(served(rate=9e4 + run.seed),) if run.precision == "amp" else ()) for run in runs
    ]
    (folder / "results.csv").write_text(results_csv(runs), encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_a_card_made_twice_is_the_same(question):
    cards.update_card(question)
    first = contents(question)
    cards.update_card(question)
    assert contents(question) == first
    text = first["README.md"].decode()
    assert text.startswith("# Question\n\nWhy?\n\n<!-- results -->\n")
    assert text.endswith("<!-- end of results -->\n\n**What we learnt.** Much.\n")
    assert "old figures" not in text
    assert " as fast as FP32 at no loss of accuracy (" in text
    assert text.count("| amp\\_bf16-2of4 |") == 1
    for part in ("front", "seeds", "speedup", "memory", "underflow"):
        assert f"plots/resnet18--cifar10-{part}.png" in text
        assert f"plots/resnet18--cifar10-{part}.svg" in first


def test_the_mark_says_how_to_compare(question):
    card = question / "README.md"
    card.write_text(
        CARD.replace("<!-- results -->", "<!-- results control=amp-dense margin=0.003 -->"), encoding="utf-8"
    )
    cards.update_card(question)
    text = card.read_text(encoding="utf-8")
    assert "<!-- results control=amp-dense margin=0.003 -->\n" in text
    assert "margin 0.003, 95 % confidence" in text
    row = next(line for line in text.splitlines() if line.startswith("| amp-dense |"))
    assert row.split(" | ")[4] == "control"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.parent.name)
def test_committed_cards_are_what_their_results_say(card, tmp_path, monkeypatch):
    """Text only: the bytes of plots depend on matplotlib's version. Whether there is something to draw is
    text, too.
    """
    # the largest, which shows that pictures of committed results can be rendered
    if card.parent.name != "grid":
        monkeypatch.setattr("mpx.render.picture._rendered", lambda figure: ("<svg></svg>", b"png"))
    shutil.copytree(card.parent, tmp_path / card.parent.name)
    cards.update_card(tmp_path / card.parent.name)
    assert (tmp_path / card.parent.name / "README.md").read_text(encoding="utf-8") == card.read_text(
        encoding="utf-8"
    )
