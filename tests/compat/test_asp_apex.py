"""apex's own checkpointing tests, unchanged, against mpx's ASP: where the variable MPX_APEX names a checkout
of apex.

What they import is mpx's here; their .cuda() stays on the CPU where there is no GPU.
"""

import io
import os
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers_for_asp import perceptron

from mpx.compat import ASP
from mpx.sparsity.choose import emptied
from mpx.sparsity.patterns import is_2of4

SCRIPTS = Path(os.environ.get("MPX_APEX", "")) / "apex" / "contrib" / "sparsity" / "test"

pytestmark = pytest.mark.skipif(
    "MPX_APEX" not in os.environ, reason="MPX_APEX names no checkout of NVIDIA's apex"
)


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Runs one of apex's scripts and returns its namespace with the weights that its optimizer stepped last,
    as `weights`.
    """
    made = []

    class FusedAdam(torch.optim.Adam):
        def __init__(self, parameters):
            super().__init__(parameters)
            made.append(self)

    for name, contents in {
        "apex": {},
        "apex.optimizers": {"FusedAdam": FusedAdam},
        "apex.contrib": {},
        "apex.contrib.sparsity": {"ASP": ASP},
    }.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
        monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)
    monkeypatch.chdir(tmp_path)

    def run(name, main=None):
        """main: what to do with the script's own functions, in place of its last lines."""
        with torch.serialization.safe_globals([torch.nn.Linear]):  # which part 1 saves as an argument
            found = runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__" if main is None else name)
            if main is not None:
                main(found)
        return [parameter.detach() for group in made[-1].param_groups for parameter in group["params"]]

    return run


@pytest.fixture
def apex(monkeypatch):
    """apex's own ASP, initialised for nothing yet."""
    monkeypatch.syspath_prepend(os.environ["MPX_APEX"])
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from apex.contrib.sparsity import ASP as theirs
    with emptied(theirs):
        yield theirs
    for name in [name for name in sys.modules if name.split(".")[0] == "apex"]:
        sys.modules.pop(name)


def sparse(parameters):
    """Which of the linear layers' weights are 2:4; behind each stand its bias and a LayerNorm's two."""
    return [is_2of4(weight) for weight in parameters[::4]]


def test_continued_from_a_checkpoint_as_if_never_interrupted(script, capsys):
    expected = script("checkpointing_test_reference")
    script("checkpointing_test_part1")
    capsys.readouterr()
    found = script("checkpointing_test_part2")
    printed = capsys.readouterr().out
    assert "Model sparsity is enabled" in printed
    assert all(map(torch.equal, found, expected))
    assert sparse(found) == [False, True, True, True]  # the first has 8 inputs


def test_toy_problem(script, capsys):
    """Dense, sparse, masks computed again, dense again."""
    weights = script("toy_problem")
    assert "Disabled sparsity for linear_layer_1.weight (dense weights restored)" in capsys.readouterr().out
    assert sparse(weights) == [False] * 4


@pytest.mark.parametrize("recompute", [False, True])
def test_apex_itself_loads_the_masks_that_are_written_into_a_state_dict(apex, recompute):
    model, twin = perceptron(), perceptron(1)
    choice = {"verbosity": 0, "allow_recompute_mask": recompute, "allow_permutation": False}
    pruning = ASP.init_model_for_pruning(model, **choice)
    ASP.compute_sparse_masks()
    apex.init_model_for_pruning(twin, **choice)
    twin.load_state_dict(model.state_dict(), strict=True)
    assert apex.is_sparsity_enabled()
    for weight in pruning.masks.pruned:
        buffers = dict(twin.get_submodule(weight.layer).named_buffers())
        assert torch.equal(buffers["__weight_mma_mask"], pruning.masks.masks[weight.name])
    if recompute:
        apex.restore_pruned_weights()
        ASP.restore_pruned_weights()
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
