"""What one trace does not meet: training mode, arguments that are not given, parameters without part in it,
other views of a tensor.
"""

import torch
from helpers_for_permutation import permuted, permuted_names
from torch import Tensor, nn


def largest_change(before, after) -> float:
    """Of any output, as a share of its size."""
    before, after = ([one] if isinstance(one, Tensor) else list(one) for one in (before, after))
    return max(
        float((one - other).detach().abs().max() / one.detach().abs().max())
        for one, other in zip(before, after, strict=True)
    )


class Auxiliary(nn.Module):
    """A second head in training alone, as the issue has it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.aux = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x):
        h = self.a(x).relu()
        return (self.b(h), self.aux(h)) if self.training else self.b(h)


def test_heads_of_training_move_along():
    torch.manual_seed(0)
    model, x = Auxiliary(), torch.randn(4, 16)
    before = model(x)
    report = permuted(model, x)
    assert permuted_names(report) == {"b.weight", "aux.weight"}
    assert largest_change(before, model(x)) < 1e-5
    assert model.training


def test_a_wrong_rule_in_training_mode_is_noticed(monkeypatch):
    """As if the trace of training mode had been missed."""
    from mpx.sparsity.permutation import graph

    torch.manual_seed(0)
    monkeypatch.setattr(
        graph,
        "trace",
        lambda model, ways, marked=False, original=graph.trace: original(model, ways, marked=marked)[:1],
    )
    model, x = Auxiliary(), torch.randn(4, 16)
    before = model(x)
    report = permuted(model, x, exhaustive=True)
    assert "everything was put back" in report.reason
    assert largest_change(before, model(x)) == 0
