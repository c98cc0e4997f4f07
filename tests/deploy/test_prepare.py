"""Ranges of activations, and batch norm in convolutions."""

import torch
from torch import nn

from mpx.deploy.prepare import folded, ranges


def of(x, fmt):
    """The range for a layer that sees x."""
    model = nn.Sequential(nn.Linear(x.shape[1], 4))
    return ranges(model, lambda: iter([x[:5], x[5:]]), fmt)["0"]


def rounded(x, largest):
    step = largest / 127
    return (x / step).round().clamp(-127, 127) * step


@torch.no_grad()
def test_a_few_outliers_are_cut():
    torch.manual_seed(0)
    x = torch.randn(2000, 50)
    x[0, 0] = 100.0
    found = of(x, "int8")
    assert 3 < found < 90
    errors = {
        largest: (rounded(x, largest) - x).square().sum()
        for largest in (0.5 * found, 0.8 * found, found, 100.0)
    }
    assert min(errors, key=errors.get) == found
    assert of(x, "fp8") == 100.0


class Net(nn.Module):
    """Folds `first`; `shared` is called twice, and a ReLU lies before `alone`."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.second, self.alone = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.shared, self.last = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        for norm in (self.norm, self.alone, self.last):
            (
                norm.running_mean.normal_(),
                norm.running_var.uniform_(0.5, 2),
                norm.weight.data.normal_(),
                norm.bias.data.normal_(),
            )

    def forward(self, x):
        x = self.alone(torch.relu(self.second(self.norm(self.first(x)))))
        return self.last(self.shared(self.shared(x)))


@torch.no_grad()
def test_norms_behind_convolutions_are_folded():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    made = folded(model, x)
    assert [isinstance(getattr(made, name), nn.Identity) for name in ("norm", "alone", "last")] == [
        True,
        False,
        False,
    ]
    assert made.first.bias is not None
    assert model.first.bias is None
    for batch in (x, torch.randn(5, 3, 9, 9)):
        torch.testing.assert_close(made(batch), model(batch), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_an_output_that_is_read_elsewhere_is_not_folded():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.norm.running_mean.fill_(2.0)

        def forward(self, x):
            out = self.conv(x)
            return self.norm(out) + out

    model = Read().eval()
    assert folded(model, torch.randn(2, 3, 4, 4)) is model
