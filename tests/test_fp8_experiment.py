"""experiments/fp8: every recipe is a linear layer, and a recipe that fails costs the others nothing."""

import csv

import pytest
import torch
from experiment import script
from torch.nn.functional import linear

IN_FP8 = {  # recipe -> whether the output and the gradients of input and weight are products in FP8
    "bf16": (False, False, False), "gw_hp": (True, True, False), "gw_hp_exact": (True, True, False), "gw_hp_post": (True, True, False),
    "tensor_gw_hp": (True, True, False), "tensor": (True, True, True), "tensor_early": (True, True, True), "rowwise": (True, True, True),
}  # fmt: skip


def differences(recipe):
    """Relative to FP32, of the output and the gradients of input, weight and bias."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(512, 64, dtype=torch.bfloat16), 0.1 * torch.randn(32, 64), torch.randn(32)
    above, sides = torch.randn(512, 32, dtype=torch.bfloat16), []
    for function in (recipe, lambda x, weight, bias: linear(x.float(), weight, bias)):
        tensors = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        with torch.autocast("cpu", torch.bfloat16, enabled=function is recipe):
            out = function(*tensors)
        out.backward(above.to(out.dtype))
        sides.append([out.detach(), *(tensor.grad for tensor in tensors)])
    return [float((mine.float() - exact).norm() / exact.norm()) for mine, exact in zip(*sides, strict=True)]


@pytest.mark.parametrize("name", IN_FP8)
def test_a_recipe_is_a_linear_layer(name):
    recipes = script("fp8/recipes.py").RECIPES
    assert set(recipes) == set(IN_FP8)
    try:
        found = differences(recipes[name])
    except (NotImplementedError, RuntimeError) as error:
        if "_scaled_mm" not in str(error):
            raise
        pytest.skip(f"this PyTorch multiplies no FP8 on a CPU: {error}")
    for difference, rounded in zip(found, IN_FP8[name], strict=False):
        assert (0.015 < difference < 0.08) if rounded else difference < 0.005
    assert found[3] < 0.005


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
