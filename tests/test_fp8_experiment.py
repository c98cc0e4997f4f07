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
    assert "**Not shown.** in which kernels the time is spent." in card
    assert "earlier script" not in card
