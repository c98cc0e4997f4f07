"""Prepare a trained model for serving in one format: fold batch norms, for 8 bits measure the range of each
layer's inputs, and compute the outputs with which what is served is compared.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mpx.deploy import onnx
from mpx.deploy.backends import Look, Served, forward_hooks
from mpx.deploy.build import Samples, Trained, cast, in_format
from mpx.deploy.choose import Way
from mpx.deploy.kernels import with_kernels
from mpx.deploy.onnx import OnnxModel
from mpx.deploy.products import INT8_LARGEST
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import float32_matmuls
from mpx.settings.deploy import QUANTISED
from mpx.sparsity.kernels import unsupported_layer

CALIBRATING = 512  # samples of the validation set, from which the ranges of 8 bits come
TOLERANCE = 1e-4  # relative error of the outputs in FP32 of a model with folded norms
BINS = 2048
TRIED_RANGES = 128  # equal steps up to the largest magnitude


@dataclass(frozen=True)
class Serving:
    """A trained model and all that makes it servable in one format.

    given: as it was trained. trained: with folded norms. ranges: of its layers' inputs, for 8 bits on a GPU.
    references: its outputs in FP32 on the CPU, by batch size. onnx_model: makes ONNX Runtime's model once.
    """

    fmt: str
    mode: Mode
    device: torch.device
    given: Trained
    trained: Trained
    ranges: dict[str, float]
    references: dict[int, Tensor]
    onnx_model: Callable[[], OnnxModel]

    def model(self) -> nn.Module:
        return in_format(self.trained, self.mode, self.device)

    def call(self, way: Way) -> Served | OnnxModel:
        if way.backend == "onnx":
            return self.onnx_model()
        return Served(with_kernels(self.model(), way.kernels, self.ranges), way.backend, self.device)


def prepared(given: Trained, fmt: str, mode: Mode, test: Samples, val: Samples, sizes: list[int]) -> Serving:
    """sizes: of batches, the largest first."""
    device, image = test.device, given.data.spec.kind == "image"
    x = test.batch(2).cpu()  # a single sample would fix the batch size of an exported graph to 1
    trained = Trained(folded(given.model, x), given.data) if image else given
    with float32_matmuls(MODES["fp32"], emulate=False):
        plain = in_format(given, MODES["fp32"], device)
        references = {size: plain(test.batch(size)).cpu() for size in sizes}

    def calibrating() -> Iterator[Tensor]:
        size = min(sizes[0], CALIBRATING)
        return (x for x, _ in islice(val.batches(size), math.ceil(CALIBRATING / size)))

    @cache
    def onnx_model() -> OnnxModel:
        content = onnx.exported(trained.model, x)
        if fmt == "int8":
            content = onnx.quantised(content, lambda: (x.cpu() for x in calibrating()), static=image)
        return OnnxModel(content)

    largest: dict[str, float] = {}
    if fmt in QUANTISED and device.type == "cuda":
        with float32_matmuls(mode, emulate=False):
            inputs = lambda: (cast(x, mode) for x in calibrating())  # noqa: E731
            largest = ranges(in_format(trained, mode, device), inputs, fmt)
    return Serving(fmt, mode, device, given, trained, largest, references, onnx_model)


@torch.no_grad()
def folded(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy in which each Conv2d before a BatchNorm2d has the norm's scale and shift: that saves a kernel.

    It is `model` itself if the results would change, as where the model reads the output of a convolution at
    another place, too. model: in evaluation mode, in FP32. x: a batch, to find the pairs and to compare the
    results.
    """
    made = copy.deepcopy(model)
    pairs = _pairs(model, x)
    for name, norm_name in pairs.items():
        conv, norm = made.get_submodule(name), made.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        made.set_submodule(name, fuse_conv_bn_eval(conv, norm))
        made.set_submodule(norm_name, nn.Identity())
    expected = model(x)
    same = bool((made(x) - expected).norm() <= TOLERANCE * expected.norm())
    return made.requires_grad_(False) if pairs and same else model


def _pairs(model: nn.Module, x: Tensor) -> dict[str, str]:
    """{convolution: the norm that reads its output}, by names. Both are called exactly once."""
    outputs: list[tuple[str, Tensor]] = []  # of convolutions; kept alive, so that no two have the same id
    inputs: list[tuple[str, Tensor]] = []  # of norms

    def note(name: str, layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        outputs.append((name, out)) if name in convs else inputs.append((name, args[0]))

    named = dict(model.named_modules())
    convs = {name for name, layer in named.items() if type(layer) is nn.Conv2d}
    norms = {
        name for name, layer in named.items() if type(layer) is nn.BatchNorm2d and layer.track_running_stats
    }
    with forward_hooks(model, convs | norms, note):
        model(x)
    calls = Counter(name for name, _ in (*outputs, *inputs))
    return {
        conv: norm
        for conv, out in outputs
        for norm, x in inputs
        if out is x and calls[conv] == calls[norm] == 1
    }


def ranges(model: nn.Module, batches: Callable[[], Iterable[Tensor]], fmt: str) -> dict[str, float]:
    """The input range of each layer that a product can replace: the magnitude that becomes the largest number
    of `fmt`.

    batches: called twice, and must return the same inputs.
    fp8: the largest magnitude that occurred, since small values of a floating point format are as exact.
    int8: the magnitude that minimises the squared error of rounding and clipping together. Otherwise a few
    outliers would decide how small values are rounded.
    """
    largest = {
        name: 0.0 for name, layer in model.named_modules() if name and unsupported_layer(layer) is None
    }

    def widest(name: str, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        largest[name] = max(largest[name], args[0].abs().max().item())

    def count(name: str, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        counts[name] += torch.histc(args[0].abs().float(), BINS, 0, largest[name]).cpu()

    def watch(look: Look) -> None:
        with forward_hooks(model, largest, look):
            for x in batches():
                model(x)

    watch(widest)
    # a layer that is never called, or with zeros alone, has no range
    largest = {name: value for name, value in largest.items() if value > 0}
    if fmt == "fp8":
        return largest
    counts = {name: torch.zeros(BINS) for name in largest}
    watch(count)
    return {name: largest[name] * _best_share(counts[name]) for name in largest}


def _best_share(counts: Tensor) -> float:
    """The best range, as a share of the largest magnitude.

    counts: a histogram of magnitudes. Rounding to steps of s has the mean squared error s²/12.
    """
    values = (torch.arange(BINS) + 0.5) / BINS
    shares = torch.arange(1, TRIED_RANGES + 1)[:, None] / TRIED_RANGES
    clipped = (values - shares).clamp_min(0) ** 2
    rounded = torch.where(values <= shares, (shares / INT8_LARGEST) ** 2 / 12, 0)
    return shares[((clipped + rounded) * counts).sum(1).argmin()].item()
