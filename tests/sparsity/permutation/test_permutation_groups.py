"""What may change places with what: siblings, residuals, heads, groups, and the operations that forbid it."""

import pytest
import torch
from helpers_for_permutation import assert_same_function, permuted, permuted_names, reasons, shaken
from torch import Tensor, nn

from mpx.sparsity.patterns import kept_magnitude, mask_2of4
from mpx.sparsity.permutation.graph import find_groups
from mpx.sparsity.permutation.trace import calls


class Net(nn.Module):
    """Linear layers by name, and a function of them and the input for forward."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def net(function, **layers) -> nn.Module:
    return shaken(Net(function, **layers))


def groups_by_axis(model, x) -> dict[tuple[str, int], list[int]]:
    """Sizes of the groups of exchangeable channels that each axis takes part in."""
    sizes: dict[tuple[str, int], list[int]] = {}
    for group in find_groups(model, calls(x))[0]:
        for axis, places in group.items():
            sizes.setdefault((axis.name, axis.dim), []).append(len(places))
    return sizes


def test_siblings_share_one_order_that_is_best_for_both():
    model = net(
        lambda m, x: m.a(m.up(x)) + m.b(m.up(x)), up=nn.Linear(6, 16), a=nn.Linear(16, 8), b=nn.Linear(16, 8)
    )
    matrix = torch.cat([model.a.weight, model.b.weight]).detach().clone()
    report = assert_same_function(model, torch.randn(3, 6), work=1e9)
    joint = torch.cat([model.a.weight, model.b.weight]).detach()
    assert permuted_names(report) == {"a.weight", "b.weight"}
    assert kept_magnitude(joint, mask_2of4(joint)) > kept_magnitude(matrix, mask_2of4(matrix))
    assert [layer["kept_after"] for layer in report.layers] == [
        pytest.approx(kept_magnitude(one.weight, mask_2of4(one.weight))) for one in (model.a, model.b)
    ]


def test_a_residual_add_ties_its_two_branches():
    model = net(
        lambda m, x: m.out(m.a(x) + m.b(m.a(x))),
        a=nn.Linear(6, 16),
        b=nn.Linear(16, 16),
        out=nn.Linear(16, 4),
    )
    sizes = groups_by_axis(model, torch.randn(3, 6))
    assert sizes == {(name, dim): [16] for name, dim in (("a.weight", 0), ("a.bias", 0), ("b.weight", 0),
    ("b.weight", 1), ("b.bias", 0),
                                                         ("out.weight", 1))}  # fmt: skip
    assert_same_function(model, torch.randn(3, 6))


def test_a_residual_from_the_input_holds_everything():
    model = net(lambda m, x: m.out(x + m.a(x)), a=nn.Linear(8, 8), out=nn.Linear(8, 4))
    stays = "its input channels stay: it comes from the model's input"
    assert reasons(permuted(model, torch.randn(3, 8))) == {"a.weight": stays, "out.weight": stays}


def test_concatenated_channels_stay_within_their_part():
    model = net(
        lambda m, x: m.out(torch.cat([m.a(x), m.b(x).relu()], 1)),
        a=nn.Linear(6, 8),
        b=nn.Linear(6, 16),
        out=nn.Linear(24, 4),
    )
    assert sorted(groups_by_axis(model, torch.randn(3, 6))["out.weight", 1]) == [8, 16]
    assert_same_function(model, torch.randn(3, 6))


def test_groups_and_depthwise_convolutions():
    class Convolutions(nn.Sequential):
        def forward(self, x):
            return super().forward(x).mean((2, 3))

    model = shaken(Convolutions(
        nn.Conv2d(3, 32, 1), nn.GroupNorm(2, 32), nn.ReLU(), nn.Conv2d(32, 64, 3, groups=2),
        nn.BatchNorm2d(64), nn.PReLU(64),
        nn.Conv2d(64, 64, 3, groups=64), nn.AvgPool2d(2), nn.Conv2d(64, 8, 1),
    ))  # fmt: skip
    x = torch.randn(2, 3, 12, 12)
    sizes = groups_by_axis(model, x)
    assert sizes["3.weight", 1] == [16, 16]
    assert sizes["8.weight", 1] == sizes["6.weight", 0] == [32, 32]
    assert permuted_names(assert_same_function(model, x)) == {"3.weight", "8.weight"}


def test_an_unknown_operation_holds_what_reaches_it():
    model = net(lambda m, x: m.out(m.a(x).cumsum(1)), a=nn.Linear(6, 16), out=nn.Linear(16, 4))
    (reason,) = [
        why for name, why in reasons(permuted(model, torch.randn(3, 6))).items() if name == "out.weight"
    ]
    assert reason == "its input channels stay: cumsum is not known to keep channels apart"


FOLLOWED = {
    "computed weight": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)),
        nn.ReLU(), nn.Linear(8, 4)),
        (3, 6), "3.weight",
    ),
    "GLU": (lambda: nn.Sequential(nn.Linear(6, 32), nn.GLU(), nn.Linear(16, 8)), (3, 6), "2.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_channels_are_followed_through(name):
    make, shape, last = FOLLOWED[name]
    torch.manual_seed(0)
    report = assert_same_function(shaken(make()), torch.randn(*shape))
    assert {layer["name"]: layer["permuted"] for layer in report.layers}[last]
