"""experiments/fp8: every recipe is a linear layer, and a recipe that fails costs the others nothing."""

import csv

from experiment import script


def test_a_recipe_that_fails_costs_the_others_nothing(monkeypatch, tmp_path, capsys):
    made = script("fp8/run.py")

    def milliseconds(recipe, layers, *sizes):
        if recipe == "rowwise":
            raise RuntimeError("CUDA out of memory")
        return 10.0

    monkeypatch.setattr(made, "milliseconds", milliseconds)
    monkeypatch.setattr("sys.argv", ["run.py"])
    monkeypatch.setenv("OUT", str(tmp_path))
    rows = made.measured(made.HERE, made.COLUMNS, made.measure)
    assert rows == list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    assert len(rows) == len(made.STACKS) * (len(made.WORDS) - 1)
    assert capsys.readouterr().out.count("CUDA out of memory") == len(made.STACKS)
    card = made.card(rows)
    assert "**Not shown.** whole runs of models of that size; in which kernels" in card
