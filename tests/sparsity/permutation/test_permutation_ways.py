"""What one trace does not meet: training mode, arguments that are not given, parameters without part in it."""

import pytest
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
        lambda model, ways, original=graph.trace: original(model, ways)[:1],
    )
    model, x = Auxiliary(), torch.randn(4, 16)
    before = model(x)
    report = permuted(model, x, exhaustive=True)
    assert "everything was put back" in report.reason
    assert largest_change(before, model(x)) == 0


class Optional(nn.Module):
    """Its last layer is used only if it is asked for."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.extra = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x, both=False):
        h = self.a(x).relu()
        return self.b(h) + self.extra(h) if both else self.b(h)


UNSEEN = "extra.weight takes no part in the passes on example_input"


@pytest.mark.parametrize(
    ("examples", "exhaustive", "reason", "moved"),
    [
        ([False], False, UNSEEN, set()),
        ([False], True, None, {"b.weight"}),
        ([False, True], False, None, {"b.weight", "extra.weight"}),
    ],
)
def test_what_no_example_calls_is_asked_for(examples, exhaustive, reason, moved):
    torch.manual_seed(0)
    ways = [{"x": torch.ones(2, 16), "both": both} for both in examples]
    report = permuted(Optional(), ways, exhaustive=exhaustive)
    assert (report.reason and report.reason.partition(":")[0]) == reason
    assert permuted_names(report) == moved


def test_an_argument_that_no_example_gives_is_asked_for():
    class Masked(Auxiliary):
        def forward(self, x, mask=None):
            return self.b(self.a(x).relu()) + self.aux(self.a(x).relu())

    report = permuted(Masked(), torch.ones(2, 16))
    assert report.reason.startswith("forward takes mask, which example_input lacks")
