"""Small random networks, the same of a seed on every device, for comparisons of native and emulated FP16."""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# of which PyTorch's FP16 on a CPU is a reference
ON_A_CPU = ("linear", "conv", "cell", "attention", "embedding")
KINDS = (*ON_A_CPU, "gru", "lstm", "rnn")
CLASSES = 5


@dataclass
class Network:
    kind: str
    model: nn.Module
    x: Tensor
    loss: Callable[[Tensor], Tensor]

    @property
    def device(self) -> str:
        return self.x.device.type

    def to(self, device: str) -> "Network":
        """A copy."""
        return Network(self.kind, deepcopy(self.model).to(device), self.x.to(device), self.loss)

    def __str__(self) -> str:
        return f"{self.kind} of {tuple(self.x.shape)}: {self.model}"


class Chain(nn.Module):
    """Parts one after another, of which some are functions."""

    def __init__(self, *parts: Callable[[Tensor], Tensor]):
        super().__init__()
        self.parts = [part for part in parts if part is not None]
        self.layers = nn.ModuleList(part for part in self.parts if isinstance(part, nn.Module))

    def __deepcopy__(self, memo: dict) -> "Chain":
        return Chain(*(deepcopy(part, memo) for part in self.parts))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Residual(Chain):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)

    def __deepcopy__(self, memo: dict) -> "Residual":
        return Residual(*(deepcopy(part, memo) for part in self.parts))


class First(nn.Module):
    """Of what a recurrent layer or an attention returns, the outputs."""

    def __init__(self, layer: nn.Module, times: int = 1):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(*[x] * self.times)[0]


class Unrolled(nn.Module):
    """A cell over the steps of x [B, T, I]: the states [B, T, H]."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state, states = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(states, 1)


class Attention(nn.Module):
    """Heads of scaled dot products."""

    def __init__(self, width: int, *, causal: bool):
        super().__init__()
        self.project, self.causal = nn.Linear(width, 3 * width), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


class Times(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return str(self.factor)


class Draw:
    """everywhere: only what PyTorch's autocast on a CPU casts as its autocast on CUDA does."""

    def __init__(self, seed: int, *, everywhere: bool):
        self.random, self.everywhere = random.Random(seed), everywhere

    def network(self, kind: str) -> Network:
        self.batch = self.random.randint(2, 32)
        model, x = getattr(self, kind)()
        with torch.no_grad():
            stretch = 2.0 ** self.random.randint(-2, 2)
            for parameter in model.parameters():
                parameter.mul_(stretch)
        return Network(kind, model, x, self.loss())

    def one(self, *choices):
        return self.random.choice(choices)

    def activation(self) -> nn.Module | None:
        shared = [
            nn.ReLU,
            nn.GELU,
            nn.Tanh,
            nn.Sigmoid,
            nn.SiLU,
            nn.ELU,
            nn.LeakyReLU,
            nn.PReLU,
            lambda: None,
        ]
        return self.one(*shared if self.everywhere else [*shared, nn.Softplus, lambda: nn.Softmax(-1)])()

    def between(self, width: int) -> list:
        """What stands between layers of `width` values in the last dimension."""
        parts = [
            self.activation(),
            Times(2.0 ** self.random.randint(-5, 5)) if self.random.random() < 0.2 else None,
        ]
        return [*parts, nn.LayerNorm(width) if not self.everywhere and self.random.random() < 0.3 else None]

    def head(self, width: int) -> list:
        return [*self.between(width), nn.Linear(width, CLASSES, bias=self.one(True, False))]

    def values(self, *shape: int) -> Tensor:
        return torch.randn(*shape) * 2.0 ** self.random.randint(-10, 6)

    def linear(self) -> tuple[nn.Module, Tensor]:
        widths = [self.random.randint(1, 48) for _ in range(self.random.randint(1, 4))]
        parts = []
        for inputs, outputs in pairwise(widths):
            parts += [nn.Linear(inputs, outputs, bias=self.one(True, False)), *self.between(outputs)]
            if self.random.random() < 0.3:
                parts.append(Residual(nn.Linear(outputs, outputs), *self.between(outputs)))
            if self.random.random() < 0.2:
                parts.append(nn.BatchNorm1d(outputs))
        return Chain(*parts, *self.head(widths[-1])), self.values(self.batch, widths[0])

    def conv(self) -> tuple[nn.Module, Tensor]:
        dims, channels = self.one(1, 2), self.random.randint(1, 4)
        layer, turned, norm = [
            (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
            (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
        ][dims - 1]
        x, parts = self.values(self.batch, channels, *[self.random.randint(8, 14)] * dims), []
        for _ in range(self.random.randint(1, 3)):
            groups = self.one(1, 1, channels)
            outputs = groups * self.random.randint(1, 8)
            # whose sums on a CPU are FP16
            made = layer if self.everywhere or self.random.random() < 0.8 else turned
            parts.append(
                made(
                    channels,
                    outputs,
                    self.one(1, 3),
                    stride=self.one(1, 1, 2),
                    padding=1,
                    groups=groups,
                    bias=self.one(True, False),
                )
            )
            if (
                not self.everywhere
                # a CPU adds up the images' shares of a weight's gradient in FP16: where they cancel, it
                # overflows early
            ):
                parts.append(self.one(norm, partial(nn.GroupNorm, 1), lambda width: None)(outputs))
            parts.append(self.one(nn.ReLU, nn.GELU, nn.SiLU)())
            channels = outputs
        pool = [(nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d), (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)][
            dims - 1
        ]
        return Chain(*parts, self.one(*pool)(1), nn.Flatten(), *self.head(channels)), x

    def sequence(self) -> tuple[int, int, Tensor]:
        steps, width = self.random.randint(1, 10), self.one(4, 8, 16, 24)
        return steps, width, self.values(self.batch, steps, width)

    def pooled(self, width: int) -> list:
        return [self.one(lambda x: x[:, -1], lambda x: x.mean(1), lambda x: x.amax(1)), *self.head(width)]

    def gru(self) -> tuple[nn.Module, Tensor]:
        return self.recurrent(nn.GRU)

    def lstm(self) -> tuple[nn.Module, Tensor]:
        return self.recurrent(nn.LSTM)

    def rnn(self) -> tuple[nn.Module, Tensor]:
        return self.recurrent(nn.RNN, nonlinearity=self.one("tanh", "relu"))

    def recurrent(self, make: type[nn.Module], **options) -> tuple[nn.Module, Tensor]:
        _, width, x = self.sequence()
        options |= {
            "num_layers": self.one(1, 2),
            "bidirectional": self.one(True, False),
            "bias": self.one(True, True, False),
        }
        layer = make(width, units := self.random.randint(3, 32), batch_first=True, **options)
        return Chain(First(layer), *self.pooled(units * (1 + options["bidirectional"]))), x

    def cell(self) -> tuple[nn.Module, Tensor]:
        _, width, x = self.sequence()
        # others are not one operation on a CPU
        make = nn.RNNCell if self.everywhere else self.one(nn.GRUCell, nn.LSTMCell, nn.RNNCell)
        return Chain(Unrolled(make(width, units := self.random.randint(3, 32))), *self.pooled(units)), x

    def attention(self) -> tuple[nn.Module, Tensor]:
        _, width, x = self.sequence()
        if self.everywhere:
            layer = Attention(width, causal=self.one(True, False))
        else:
            whole = nn.TransformerEncoderLayer(
                width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=self.one(True, False)
            )
            layer = self.one(
                Attention(width, causal=self.one(True, False)),
                First(nn.MultiheadAttention(width, 2, batch_first=True), 3),
                whole,
            )
        return Chain(nn.Linear(width, width), self.one(Chain, Residual)(layer), *self.pooled(width)), x

    def embedding(self) -> tuple[nn.Module, Tensor]:
        steps, width, _ = self.sequence()
        words = self.random.randint(2, 20)  # few, so that many gradients meet
        table = nn.Embedding(words, width, sparse=self.one(True, True, False))
        return Chain(table, nn.Linear(width, width), *self.pooled(width)), torch.randint(
            words, (self.batch, steps)
        )

    def loss(self) -> Callable[[Tensor], Tensor]:
        labels, values = torch.randint(CLASSES, (self.batch,)), self.values(self.batch, CLASSES)
        factor, reduction = 10.0 ** self.random.uniform(-3, 3), self.one("mean", "sum")
        kind = self.one(
            "cross_entropy",
            "mse_loss",
            "smooth_l1_loss",
            "l1_loss",
            "binary_cross_entropy_with_logits",
            "sum",
        )

        def loss(out: Tensor) -> Tensor:
            if kind == "sum":
                return (out * values.to(out)).float().sum() * factor
            target = {"cross_entropy": labels, "binary_cross_entropy_with_logits": values.sigmoid()}.get(
                kind, values
            ).to(out.device)
            return getattr(F, kind)(out, target, reduction=reduction) * factor

        return loss


def kind_of(seed: int, *, everywhere: bool = False) -> str:
    kinds = ON_A_CPU if everywhere else KINDS
    return kinds[seed % len(kinds)]


def drawn(seed: int, *, everywhere: bool = False) -> Network:
    torch.manual_seed(seed)
    return Draw(seed, everywhere=everywhere).network(kind_of(seed, everywhere=everywhere))
