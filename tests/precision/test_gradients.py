"""Vanishing and overflowing gradients against counts by hand, emulated and native, and what a run reports of
them.
"""

import json
import math
from contextlib import nullcontext

import pytest
import torch
from few_steps import FEW_STEPS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mpx.precision.emulate import Emulate
from mpx.precision.gradients import SAMPLE, GradientWatch


def counts(fmt, scale, gradient, dtype=torch.float32, emulate=None):
    """Of the gradient of x in x @ 1, which is `gradient` itself, and of the 1, which is its product with
    x.
    """
    x, w = torch.zeros(len(gradient), 1, dtype=dtype, requires_grad=True), torch.ones(1, 1, dtype=dtype)
    watch = GradientWatch(fmt, None if scale == 1 else torch.tensor(scale))
    with Emulate(emulate) if emulate else nullcontext():
        out = x @ w
    with watch, Emulate(emulate) if emulate else nullcontext():
        torch.autograd.backward(out, gradient[:, None].to(out.dtype))
    return watch.counts.tolist()


def test_by_hand_in_fp16():
    """Below 2^-25 a value becomes zero, from 65520 on it is infinite."""
    gradient = torch.tensor([0.0, 1.0, 2.0**-25, 2.0**-24, 2.0**-30, 65519.0, 65520.0, math.inf, -1e30])
    assert counts("fp16", 1, gradient) == [8, 2, 2, 3]


def test_a_loss_scale_saves_what_would_vanish():
    """The values are scaled ones: without scaling 2^-20 would have been 2^-30."""
    gradient = torch.tensor([2.0**-20, 1.0, 2.0**-26, 0.0])
    assert counts("fp16", 2.0**10, gradient) == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("fmt", "expected"), [("bf16", [4, 0, 1, 0]), ("fp32", [4, 0, 1, 0]), ("tf32", [4, 0, 1, 0])]
)
def test_formats_with_fp32s_range(fmt, expected):
    assert counts(fmt, 1, torch.tensor([1.0, 1e-30, 1e30, -1.0, 0.0])) == expected


def test_rounding_happens_after_counting():
    """FP16 products are computed again with an FP32 result, so that what the rounding kills is still seen."""
    x = torch.full((4, 2), 2.0**-14, dtype=torch.float16)
    w = torch.full((2, 3), 2.0**-14, dtype=torch.float16, requires_grad=True)
    out = x @ w
    watch = GradientWatch("fp16", None)
    with watch:
        torch.autograd.backward(out, torch.full((4, 3), 2.0**-14, dtype=torch.float16))
    assert w.grad.abs().max() == 0  # 4 · 2^-28 is nothing in FP16
    assert watch.counts.tolist() == [6, 6, 6, 0]


def test_a_large_tensor_is_sampled():
    """Of every channel alike, also where memory runs over the channels first."""
    x = torch.zeros(16, 64, 64, 64).to(memory_format=torch.channels_last)
    gradient = torch.full_like(x, 1.0)
    gradient[:, ::2] = 2.0**-30
    watch = GradientWatch("fp16", None)
    watch._count(gradient)
    nonzero, lost, _, _ = watch.counts.tolist()
    assert gradient.numel() > 2 * SAMPLE
    assert nonzero == gradient.numel()
    assert lost / nonzero == pytest.approx(0.5, abs=1e-3)


def test_a_run_records_and_logs_what_vanishes_and_a_loss_scale_saves_it(train):
    few = ["model=resnet20", "precision=amp", *FEW_STEPS, "trainer.limit_train_batches=5", "numerics.every=2"]
    ran = train(*few, "precision.loss_scale.initial=1.0", "numerics.histogram=true")
    assert ran.code == 0, ran.err
    precision, folder = ran.record["precision"], ran.folder
    assert precision["gradient_samples"] == 3
    assert 0 < precision["gradient_underflow_fraction"] < 1
    # a scale of 1 is none
    assert precision["gradient_underflow_fraction"] == precision["gradient_underflow_unscaled_fraction"]
    assert precision["gradient_overflow_fraction"] == 0
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0}).Reload()
    tags = events.Tags()
    norms = events.Scalars("numerics/gradient_norm")
    assert [event.step for event in norms] == [1, 3, 5]
    assert all(event.value > 0 for event in norms)
    assert {"numerics/gradient_underflow_fraction", "numerics/gradient_overflow_fraction"} <= set(
        tags["scalars"]
    )
    assert tags["images"] == ["numerics/gradient_exponents"]
    scaled = train(*few, "study=scaled")
    assert scaled.code == 0, scaled.err
    (file,) = scaled.outputs.glob("scaled/*/seed0/result.json")
    with_scale = json.loads(file.read_text())["precision"]
    assert with_scale["loss_scale"]["initial"] == 65536
    assert with_scale["gradient_underflow_fraction"] < precision["gradient_underflow_fraction"] / 10
    assert with_scale["gradient_underflow_unscaled_fraction"] == pytest.approx(
        precision["gradient_underflow_fraction"], rel=0.5
    )


def test_the_norm_is_that_of_unscaled_unclipped_gradients(train):
    few = ["model=mlp", *FEW_STEPS, "trainer.limit_train_batches=1", "numerics.every=1", "data.augment=none"]
    norms = {}
    for name, options in {"plain": ["precision=fp32"], "scaled": ["precision=amp"],
                          "clipped": ["precision=fp32",
                          "trainer.gradient_clip_val=0.001"]}.items():  # fmt: skip
        ran = train(*few, *options, f"study={name}")
        assert ran.code == 0, ran.err
        (folder,) = (ran.outputs / name).glob("*/seed0")
        (norms[name],) = (
            event.value for event in EventAccumulator(str(folder)).Reload().Scalars("numerics/gradient_norm")
        )
    assert norms["clipped"] == norms["plain"]
    assert norms["scaled"] == pytest.approx(norms["plain"], rel=1e-2)
