"""Targets for `model=custom`, importable from this folder as a user's own would be from theirs."""

from torch import Tensor, nn


class Net(nn.Module):
    """Takes any kind of data."""

    def __init__(self, spec, num_classes, width=8):
        super().__init__()
        if spec.kind == "image":
            self.layers = nn.Sequential(
                nn.Flatten(), nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, num_classes)
            )
        else:
            self.layers = nn.Sequential(nn.Embedding(spec.vocab_size, width), nn.Linear(width, num_classes))
        self.kind = spec.kind

    def forward(self, x: Tensor) -> Tensor:
        logits = self.layers(x)
        return logits.mean(1) if self.kind == "text" else logits


class WrongClasses(Net):
    def __init__(self, spec):
        super().__init__(spec, num_classes=spec.classes + 1)


class Peeks(Net):
    """Its logits for a token depend on the token after it."""

    def forward(self, x):
        return super().forward(x).flip(1).cumsum(1).flip(1)


class NeedsMore(Net):
    def __init__(self, spec, colour):
        super().__init__(spec, spec.classes)


class Frozen(nn.Module):
    """Its batch norm keeps to its running statistics, also in training."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, num_classes)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).mean((2, 3)))


def not_a_network(spec):
    return 3
