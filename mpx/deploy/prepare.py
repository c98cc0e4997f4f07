"""Prepare a trained model for one format: fold and split its layers and, for 8 bits, calibrate and fine-tune it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpx.deploy import calibrate
from mpx.deploy.attention import split
from mpx.deploy.build import Trained, in_format
from mpx.deploy.finetune import Operands, Tuning, finetuned
from mpx.deploy.fold import folded
from mpx.deploy.measure import Samples
from mpx.deploy.recurrent import apart, projections
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import float32_matmuls
from mpx.settings.deploy import QUANTISED


@dataclass(frozen=True)
class Prepared:
    """A model that can be served in one format.

    references: its outputs in FP32, by batch size. projections: of its LSTMs that other kernels can serve. ranges: of its layers' inputs,
    for 8 bits on a GPU. tuned: the entry of its fine-tuning for deploy.json.
    """

    found: Trained
    references: dict[int, Tensor]
    projections: list[str]
    ranges: dict[str, float]
    tuned: dict[str, Any] | None


def prepare(
    as_trained: Trained, mode: Mode, fmt: str, tuning: Tuning | None, test: Samples, val: Samples,
    calibration: Callable[[], Iterator[Tensor]], sizes: list[int],
) -> Prepared:  # fmt: skip
    """Bring the model into the layers that kernels can serve and, for 8 bits, measure the ranges of their inputs and fine-tune it.

    calibration: makes batches of inputs, from which the ranges come. sizes: the batch sizes of the references.
    """
    references, device = _references(as_trained, test, sizes), test.device
    x = test.batch(2).cpu()
    found = _in_layers(as_trained, x, device)
    parts = projections(found.model, x) if device.type == "cuda" else []
    if fmt not in QUANTISED or (device.type == "cpu" and tuning is None):
        return Prepared(found, references, parts, {}, None)
    with float32_matmuls(mode, emulate=False):
        ranges = calibrate.ranges(apart(in_format(found, mode, device), parts), calibration, fmt)
        if tuning is None:
            return Prepared(found, references, parts, ranges, None)
        found, tuned = finetuned(found, tuning, Operands(fmt, ranges, mode.weights), val)
    return Prepared(found, _references(found, test, sizes), parts, ranges, tuned)


def _references(found: Trained, test: Samples, sizes: list[int]) -> dict[int, Tensor]:
    """The model's FP32 outputs for a batch of each size, moved to the CPU."""
    with float32_matmuls(MODES["fp32"], emulate=False):
        model = in_format(found, MODES["fp32"], test.device)
        return {size: model(test.batch(size)).cpu() for size in sizes}


def _in_layers(found: Trained, x: Tensor, device: torch.device) -> Trained:
    """Fold batch norms into convolutions. On a GPU, also give attention layers for its projections, which other kernels can serve."""
    model = folded(found.model, x) if found.data.spec.kind == "image" else found.model
    return Trained(split(model, x) if device.type == "cuda" else model, found.data)
