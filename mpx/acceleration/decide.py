"""Gather the facts that the choice depends on.

What speaks against CUDA graphs, torch.compile, cuDNN's search and channels_last?
"""

import math
from itertools import chain
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch.func import functional_call

from mpx.acceleration.choice import NO_CUDA, Choice, Facts, choose
from mpx.data.spec import Spec
from mpx.models.probe import evaluating, sample
from mpx.precision.plugin import ModePrecision
from mpx.precision.recurrent import has_rnn
from mpx.private.torch_modules import CONVOLUTION
from mpx.settings.check import against_graphs
from mpx.system.machine import builds_kernels

# Values of a channel. In channels_last on a CPU, PyTorch 2.15 sums them one by one in FP32;
# experiments/speed/README.md has the errors.
MAX_SUMMED = 2**17
# Logits of a language model for one position of a batch. Compiling the loss of so many would save about a
# sixth of a recurrent step; of WikiText-2's 2,662,240 it saves more than a quarter
# (experiments/language_model), and of few nothing: cuDNN's layers take all the time.
LARGE_LOSS = 1_000_000


def decide(cfg: DictConfig, precision: ModePrecision, model: nn.Module, spec: Spec, steps: int) -> Choice:
    """Choose the accelerations of a run. Raises UserError for a request that cannot be met.

    steps: optimizer steps of the whole run.
    """
    on_gpu = precision.device.type == "cuda"
    filters = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    pixels = _pixels(cfg.data, spec)
    facts = Facts(
        cuda=on_gpu,
        steps=steps,
        against_graphs=_against_graphs(cfg.trainer, precision),
        against_compiling=_against_compiling(precision),
        loses_recorded=masks_in_full(model),
        loses_compiled=_loses_compiled(precision, model, _logits(cfg.data, spec)),
        against_search=_against_search(model, audit=cfg.audit),
        against_channels_last=_against_channels_last(model, spec),
        loses_channels_last=None if on_gpu else _loses_channels_last(model, pixels),
        filters=sum(weight.numel() for weight in filters),
        pixels=pixels,
    )
    trainer = cfg.trainer
    return choose(
        cfg.speed, trainer.compile, trainer.cuda_graphs, trainer.benchmark, trainer.channels_last, facts
    )


def _pixels(data: DictConfig, spec: Spec) -> int:
    """Pixels of a training batch of images; 0 for other data."""
    crop = data.get("crop")
    return (
        data.batch_size * math.prod((crop, crop) if crop else spec.shape[1:]) if spec.kind == "image" else 0
    )


def _logits(data: DictConfig, spec: Spec) -> int:
    """Logits for one position of a training batch of a language model; 0 for other data."""
    return data.batch_size * spec.vocab_size if spec.kind == "lm" else 0


def _against_graphs(trainer: DictConfig, precision: ModePrecision) -> str | None:
    if precision.device.type != "cuda":
        return NO_CUDA
    if (reason := against_graphs(trainer)) is not None:
        return reason
    if precision.emulate:
        return f"precision={precision.mode.name} is emulated here, operation by operation"
    return None


def masks_in_full(model: nn.Module) -> str | None:
    """Why a recorded or compiled step is slower for a transformers model with padding; None for any other
    model.

    In an ordinary step transformers sees whether a mask is needed. In a recorded or compiled one it cannot,
    and writes out the whole mask.
    """
    masked = getattr(model, "mpx_pad_id", None) is not None
    return (
        "transformers then builds the whole attention mask and cannot use its fast kernels"
        if masked
        else None
    )


def _against_compiling(precision: ModePrecision) -> str | None:
    return (
        f"precision={precision.mode.name} is emulated here, operation by operation"
        if precision.emulate
        else None
    )


def _loses_compiled(precision: ModePrecision, model: nn.Module, logits: int) -> str | None:
    mode = precision.mode
    if (masked := masks_in_full(model)) is not None:
        return masked
    if has_rnn(model) and logits < LARGE_LOSS:
        return "cuDNN computes the recurrent layers, not the compiler"
    if mode.master:
        return f"precision={mode.name} copies the weights in each step"
    if mode.matmul in ("fp32", "tf32"):
        return f"{mode.matmul.upper()} products take most of a step, and the compiler does not shorten them"
    if not builds_kernels(precision.device.type):
        return (
            f"no {'C' if precision.device.type == 'cuda' else 'C++'} compiler with Python's header files here"
        )
    return None


def _against_search(model: nn.Module, *, audit: bool) -> str | None:
    if not any(isinstance(layer, CONVOLUTION) for layer in model.modules()):
        return "no convolutions"
    return "audit=true looks at the kernels of an ordinary step" if audit else None


def _against_channels_last(model: nn.Module, spec: Spec) -> str | None:
    """Tries the layout on two images."""
    if spec.kind != "image":
        return "no convolutions of images"
    return without_layout(model) or fails_in_layout(model, sample(spec).repeat(2, 1, 1, 1))


def _loses_channels_last(model: nn.Module, pixels: int) -> str | None:
    """Why channels_last does not pay, or is inaccurate, on a CPU. pixels: of a batch."""
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch has no oneDNN"
    if pixels > MAX_SUMMED and any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        return (
            f"batch norm would sum {pixels:,} values of a channel in FP32 one by one, above "
            f"{MAX_SUMMED:,} that is inaccurate"
        )
    return None


def without_layout(model: nn.Module) -> str | None:
    """Why a model cannot be laid out so, whatever its forward pass does; None where it can."""
    if not any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        return "no convolutions of images"
    if any(value.dim() == 5 for value in chain(model.parameters(), model.buffers())):
        return "some weights have five dimensions, as those of nn.Conv3d"
    return None


@torch.no_grad()
def fails_in_layout(model: nn.Module, *inputs: Any) -> str | None:
    """Why the forward pass fails in channels_last; None where it succeeds. The model itself keeps its layout.

    Many models have `x.view(len(x), -1)` after a convolution, which needs the ordinary layout.
    """
    every = chain(model.named_parameters(), model.named_buffers())
    laid_out = {
        name: value.to(memory_format=torch.channels_last) for name, value in every if value.dim() == 4
    }
    try:
        with evaluating(model):  # batch norm's running means must not change
            functional_call(model, laid_out, inputs)
    except Exception as error:  # of any kind; the ordinary layout works
        return f"the model cannot take it ({' '.join(str(error).split())[:100]})"
    return None
