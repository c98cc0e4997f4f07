"""Calibration: measure the range of each layer's inputs on data. A quantised product has one fixed scale for its inputs."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from mpx.deploy.build import cast
from mpx.deploy.hooks import forward_hooks
from mpx.deploy.measure import Samples
from mpx.deploy.products import INT8_LARGEST
from mpx.precision.modes import Mode
from mpx.sparsity.kernels import unsupported_layer

SAMPLES = 512  # of the validation set
BINS = 2048
TRIED_RANGES = 128  # equal steps up to the largest magnitude


def inputs(val: Samples, size: int, mode: Mode, device: torch.device) -> Iterator[Tensor]:
    """Batches of at most `size` inputs, about SAMPLES in all, of the validation set; in the format of `mode`, on `device`."""
    size = min(size, SAMPLES)
    return (cast(x, mode).to(device) for x, _ in islice(val.batches(size), math.ceil(SAMPLES / size)))


def ranges(model: nn.Module, batches: Callable[[], Iterable[Tensor]], fmt: str) -> dict[str, float]:
    """The input range of each layer that a product can replace: the magnitude that becomes the largest number of `fmt`.

    batches: called twice, and must return the same inputs.
    fp8: the largest magnitude that occurred, since small values of a floating point format are as exact. int8: the magnitude that minimises
    the squared error of rounding and clipping together. Otherwise a few outliers would decide how small values are rounded.
    """
    largest = {name: 0.0 for name, layer in model.named_modules() if name and unsupported_layer(layer) is None}

    def widest(name: str, x: Tensor) -> None:
        largest[name] = max(largest[name], x.abs().max().item())

    _watch(model, batches, largest, widest)
    largest = {name: value for name, value in largest.items() if value > 0}  # the other layers are not called, or only with zeros
    if fmt == "fp8":
        return largest
    counts = {name: torch.zeros(BINS) for name in largest}

    def count(name: str, x: Tensor) -> None:
        counts[name] += torch.histc(x.abs().float(), BINS, 0, largest[name]).cpu()

    _watch(model, batches, largest, count)
    return {name: largest[name] * _best_share(counts[name]) for name in largest}


def _watch(model: nn.Module, batches: Callable[[], Iterable[Tensor]], names: Iterable[str], look: Callable[[str, Tensor], None]) -> None:
    with forward_hooks(model, names, lambda name, args, kwargs, out: look(name, args[0])):
        for x in batches():
            model(x)


def _best_share(counts: Tensor) -> float:
    """The best range, as a share of the largest magnitude.

    counts: a histogram of magnitudes. Rounding to steps of s has the mean squared error s²/12.
    """
    values = (torch.arange(BINS) + 0.5) / BINS
    shares = torch.arange(1, TRIED_RANGES + 1)[:, None] / TRIED_RANGES
    clipped = (values - shares).clamp_min(0) ** 2
    rounded = torch.where(values <= shares, (shares / INT8_LARGEST) ** 2 / 12, 0)
    return shares[((clipped + rounded) * counts).sum(1).argmin()].item()
