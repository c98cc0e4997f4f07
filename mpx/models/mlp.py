"""A multilayer perceptron: linear layers of any widths with ReLUs; and the mean over a text's tokens."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from mpx.data.spec import Spec


def masked_mean(features: Tensor, ids: Tensor, pad_id: int | None) -> Tensor:
    """Mean over the tokens that are not padding: features [B, T, H], ids [B, T] -> [B, H]; zeros for a text
    of padding only.
    """
    if pad_id is None:
        return features.mean(1)
    # A product reads the features once. A masked sum writes them again, and under autocast once more in FP32.
    mask = (ids != pad_id).to(features.dtype)  # [B, T]
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return (weights.unsqueeze(1) @ features).squeeze(1)


class MLP(nn.Module):
    """Reads a flattened image, or the mean of a text's token embeddings without padding."""

    def __init__(self, widths: list[int], dropout: float, embedding_size: int, spec: Spec):
        super().__init__()
        self.pad_id = spec.pad_id
        self.embedding = None
        inputs = prod(spec.shape)
        if spec.kind == "text":
            self.embedding = nn.Embedding(spec.ids, embedding_size, padding_idx=spec.pad_id)
            inputs = embedding_size
        layers = []
        for fan_in, fan_out in pairwise([inputs, *widths]):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear([inputs, *widths][-1], spec.classes))

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, C, H, W] or token ids [B, T] -> [B, classes]."""
        features = x.flatten(1) if self.embedding is None else masked_mean(self.embedding(x), x, self.pad_id)
        return self.layers(features)


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """The setting `widths` has the neurons of each hidden layer; [] gives a linear model."""
    return MLP(cfg["widths"], cfg["dropout"], cfg["embedding_size"], spec)
