"""The committed cards and pages say what the committed tables say."""

import csv
import re
import shlex

import documents
import pytest
from documents import text
from experiment import EXPERIMENTS, script

# (script, its table); the other cards are written by hand
CARDS = [
    *((f"{name}/run.py", "results.csv") for name in ("auto", "intervals", "looks", "real_data", "scaling")),
    ("real_data/images.py", "images.csv"),
    ("audit/run.py", "operations.csv"),
]


@pytest.mark.parametrize(("path", "table"), CARDS, ids=[card[0] for card in CARDS])
def test_the_tables_of_a_card_are_those_of_its_rows(path, table):
    with open((EXPERIMENTS / path).with_name(table), newline="") as file:
        parts = script(path).card(list(csv.DictReader(file)))
    committed = text((EXPERIMENTS / path).with_name("README.md"))
    for name, part in parts.items():
        assert f"<!-- {name} -->\n\n{part}\n\n<!-- end of {name} -->" in committed


def trainings():
    for card in documents.CARDS:
        for found in re.findall(
            r"python -m mpx\.train ([^`]*?)(?=`| python -m )", re.sub(r"\s*\\?\n\s*", " ", text(card))
        ):
            yield pytest.param(shlex.split(found), id=f"{card.parent.name}: {found}")


@pytest.mark.parametrize("words", list(trainings()))
def test_the_command_of_a_card_composes(train, words):
    """As one job with the first value of each list: Hydra shows no configuration of a sweep."""
    one = (re.sub(r",(?![^\[{]*[\]}]).*", "", word) for word in words if word not in ("-m", "CHANGE"))
    ran = train("--cfg", "job", *one)
    assert ran.code == 0, ran.err
