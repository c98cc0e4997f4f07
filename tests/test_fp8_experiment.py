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


def test_what_the_card_and_the_pages_say():
    made = script("fp8/run.py")
    rows = list(csv.DictReader((made.HERE / "results.csv").open(newline="")))
    ms = {(row["stack"], row["recipe"], row["layers"]): float(row["ms"]) for row in rows}
    assert len(ms) == len(made.STACKS) * len(made.WORDS)

    def faster(stack, recipe="gw_hp", layers="all"):
        return ms[stack, "bf16", "all"] / ms[stack, recipe, layers]

    small = [faster(stack, *how) for stack in made.STACKS if "base" in stack for how in made.WORDS if how[0] != "bf16"]
    assert max(small) < 1
    base = [f"{faster(f'BERT-base, 256×{tokens} tokens'):.2f}" for tokens in (128, 512)]
    assert base == ["0.95", "0.85"]
    large, long = "BERT-large, 256×128 tokens", "BERT-large, 256×512 tokens"
    assert (f"{faster(large):.2f}", f"{faster(long):.2f}") == ("1.05", "0.95")
    assert [f"{faster(stack, layers='ffn'):.2f}" for stack in (large, long)] == ["1.03", "1.04"]
    wide, wider = "2,048 features, 64×512 tokens", "4,096 features, 32×512 tokens"
    card, page = (" ".join(path.read_text().split()) for path in (made.HERE / "README.md", made.HERE.parents[1] / "docs" / "precision.md"))
    assert f"At 2,048 features it is {faster(wide):.2f} times as fast as BF16, at 4,096 {faster(wider):.2f} times" in card
    assert f"of 4,096 features are {faster(wider):.2f} times as fast in FP8 as in BF16, of 2,048 {faster(wide):.2f} times" in page
    assert f"faster yet at 4,096 features ({faster(wider, 'tensor'):.2f} times) and slower at 2,048" in card
    assert faster(wider) < faster(wider, "tensor")
    assert faster(wide, "tensor") < faster(wide)
