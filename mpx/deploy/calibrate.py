"""The range of each layer's inputs, from data: quantised products have one fixed scale for them."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from mpx.deploy.products import INT8_LARGEST
from mpx.deploy.seen import seen
from mpx.sparsity.kernels import unsupported_layer

SAMPLES = 512  # of the validation set
BINS = 2048
TRIED_RANGES = 128  # of the largest magnitude, tried as the range


def ranges(model: nn.Module, batches: Callable[[], Iterable[Tensor]], fmt: str) -> dict[str, float]:
    """The magnitude of the inputs of each layer that products can replace, which becomes the largest number of
    `fmt`. batches: called twice, gives the same inputs.

    fp8: the largest magnitude seen, since a floating point format is as exact for small values. int8: the magnitude at which the squared
    error of rounding and cutting together is least; otherwise a few outliers would decide how small values are rounded.
    """
    largest = {name: 0.0 for name, layer in model.named_modules() if name and unsupported_layer(layer) is None}

    def widest(name: str, x: Tensor) -> None:
        largest[name] = max(largest[name], x.abs().max().item())

    _watch(model, batches, largest, widest)
    largest = {name: value for name, value in largest.items() if value > 0}  # the others are not called, or see zeros only
    if fmt == "fp8":
        return largest
    counts = {name: torch.zeros(BINS) for name in largest}

    def count(name: str, x: Tensor) -> None:
        counts[name] += torch.histc(x.abs().float(), BINS, 0, largest[name]).cpu()

    _watch(model, batches, largest, count)
    return {name: largest[name] * _best_share(counts[name]) for name in largest}


def _watch(model: nn.Module, batches: Callable[[], Iterable[Tensor]], names: Iterable[str], see: Callable[[str, Tensor], None]) -> None:
    with seen(model, names, lambda name, args, kwargs, out: see(name, args[0])):
        for x in batches():
            model(x)


def _best_share(counts: Tensor) -> float:
    """Of the range of a histogram of magnitudes. Rounding to steps of s has the mean squared error s²/12."""
    values = (torch.arange(BINS) + 0.5) / BINS
    shares = torch.arange(1, TRIED_RANGES + 1)[:, None] / TRIED_RANGES
    cut = (values - shares).clamp_min(0) ** 2
    rounded = torch.where(values <= shares, (shares / INT8_LARGEST) ** 2 / 12, 0)
    return shares[((cut + rounded) * counts).sum(1).argmin()].item()
