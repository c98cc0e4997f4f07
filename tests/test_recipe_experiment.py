"""experiments/recipe: its card says what its table says."""

import csv
import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "experiments" / "recipe"


def test_the_committed_card_is_what_its_table_says():
    spec = importlib.util.spec_from_file_location("recipe_card", FOLDER / "card.py")
    card = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(card)
    with open(FOLDER / "results.csv", newline="") as file:
        part = card.tables(list(csv.DictReader(file)))
    assert f"{card.MARK}\n\n{part}\n\n{card.END}" in (FOLDER / "README.md").read_text()
