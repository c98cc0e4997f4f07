"""Choose what a run uses: CUDA graphs, torch.compile, cuDNN's search, channels_last. Each choice comes with
its reason.

`speed=auto` takes what is safe and pays off; the keys of the trainer override it. experiments/speed/README.md
and experiments/cpu_layout have the measurements behind the bounds.
"""

import math
from itertools import chain
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch.func import functional_call

from mpx.acceleration.apply import Choice
from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.models.probe import sample
from mpx.precision.plugin import ModePrecision
from mpx.precision.recurrent import has_rnn
from mpx.private.torch_modules import CONVOLUTION
from mpx.settings.check import against_graphs, graphs_refused
from mpx.system.machine import builds_kernels
from mpx.system.processes import evaluating

NO_CUDA = "no CUDA device"
UNDECIDED = "undecided"  # the first steps are timed, then the others are compiled if that pays
SEARCH_FROM = 1_000  # optimizer steps; cuDNN's search takes a second or two
# Numbers in filters per pixel of a batch. Up to here channels_last pays on a CPU, where oneDNN then
# rearranges filters, not activations.
FILTERS_PER_PIXEL = 500
# Values of a channel. In channels_last on a CPU, PyTorch 2.15 sums them one by one in FP32;
# experiments/speed/README.md has the errors.
MAX_SUMMED = 2**17
# Logits of a language model for one position of a batch. Compiling the loss of so many would save about a
# sixth of a recurrent step; of WikiText-2's 2,662,240 it saves more than a quarter
# (experiments/language_model), and of few nothing: cuDNN's layers take all the time.
LARGE_LOSS = 1_000_000


def decide(
    cfg: DictConfig, precision: ModePrecision, model: nn.Module, spec: Spec, steps: int, lengths: int
) -> Choice:
    """Choose the accelerations of a run. Raises UserError for a request that cannot be met.

    steps: optimizer steps of the whole run. lengths: of its batches of texts; 1 for other data.
    """
    on_gpu, trainer = precision.device.type == "cuda", cfg.trainer
    cannot_record, slower_recorded = _against_graphs(trainer, precision), masks_in_full(model)
    cannot_compile = _emulated(precision)
    # for one position of a training batch of a language model
    logits = cfg.data.batch_size * spec.vocab_size if spec.kind == "lm" else 0
    slower_compiled = _loses_compiled(precision, model, logits, lengths)
    graphs, why_graphs = _graphs(cfg.speed, trainer.cuda_graphs, cannot_record, slower_recorded)
    compiling, why_compile = _compile(
        cfg.speed, trainer.compile, cannot_compile, slower_compiled, on_gpu=on_gpu
    )
    search, why_search = _search(cfg, model, steps, on_gpu=on_gpu)
    layout, why_layout = _channels_last(cfg, model, spec, on_gpu=on_gpu)
    why = {
        "cuda_graphs": why_graphs,
        "compile": why_compile,
        "benchmark": why_search,
        "channels_last": why_layout,
    }
    against = {"cuda_graphs": cannot_record or slower_recorded, "compile": cannot_compile or slower_compiled}
    return Choice(
        graphs,
        "off" if compiling == UNDECIDED else compiling,
        trainer.cuda_graphs is True,
        search,
        layout,
        why,
        compiling == UNDECIDED,
        on_gpu,
        against={name: reason for name, reason in against.items() if reason is not None},
    )


def _as_requested(key: str, requested: bool | str, speed: str) -> tuple[bool, str] | None:
    """What the user asks for, with the reason. None: the facts decide."""
    if isinstance(requested, bool):
        return requested, f"trainer.{key}={str(requested).lower()}"
    return (False, "speed=plain") if speed == "plain" else None


def _graphs(speed: str, requested: bool | str, cannot: str | None, slower: str | None) -> tuple[bool, str]:
    """cannot: why a recorded step cannot be replayed. slower: why that is slower."""
    if requested is True and cannot is not None:
        raise graphs_refused(cannot)
    if (asked := _as_requested("cuda_graphs", requested, speed)) is not None:
        return asked
    reason = cannot or slower
    return (True, "the whole step repeats") if reason is None else (False, reason)


def _compile(
    speed: str, requested: str, cannot: str | None, slower: str | None, *, on_gpu: bool
) -> tuple[str, str]:
    """off, a mode of torch.compile, or UNDECIDED. cannot: why torch.compile cannot take the steps. slower:
    why compiled steps are not known to be faster.
    """
    if requested not in ("auto", "off") and cannot is not None:
        raise UserError(f"trainer.compile={requested} is not possible: {cannot}. Use trainer.compile=off.")
    if requested != "auto":
        return requested, f"trainer.compile={requested}"
    if speed == "plain":
        return "off", "speed=plain"
    reason = cannot or (slower if on_gpu else "on a CPU it rarely pays")
    return (
        (UNDECIDED, "the first steps are timed, to see whether it pays")
        if reason is None
        else ("off", reason)
    )


def _search(cfg: DictConfig, model: nn.Module, steps: int, *, on_gpu: bool) -> tuple[bool, str]:
    """A request that cannot be met is not an error, because a study may set it for several models, some of
    them without convolutions.
    """
    requested, reason = cfg.trainer.benchmark, None if on_gpu else NO_CUDA
    if not any(isinstance(layer, CONVOLUTION) for layer in model.modules()):
        reason = "no convolutions"
    elif cfg.audit:
        reason = "audit=true looks at the kernels of an ordinary step"
    if requested is True and reason is not None:
        return False, f"trainer.benchmark=true, but {reason}"
    if (asked := _as_requested("benchmark", requested, cfg.speed)) is not None:
        return asked
    if reason is not None:
        return False, reason
    return steps >= SEARCH_FROM, f"{steps:,} steps, pays from about {SEARCH_FROM:,}"


def _channels_last(cfg: DictConfig, model: nn.Module, spec: Spec, *, on_gpu: bool) -> tuple[bool, str]:
    requested, cannot = cfg.trainer.channels_last, _against_channels_last(model, spec)
    if requested is True and cannot is not None:
        raise UserError(
            f"trainer.channels_last=true is not possible: {cannot}. Use trainer.channels_last=auto."
        )
    if (asked := _as_requested("channels_last", requested, "auto" if on_gpu else cfg.speed)) is not None:
        return asked
    if cannot is not None:
        return False, cannot
    if on_gpu:
        return True, "cuDNN's Tensor Core and batch norm kernels read it"
    pixels = _pixels(cfg.data, spec)
    if (reason := _loses_channels_last(model, pixels)) is not None:
        return False, reason
    filters = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Conv2d))
    most = FILTERS_PER_PIXEL * pixels
    return filters <= most, f"{filters:,} filter weights, pays up to about {most:,} at this batch size"


def _pixels(data: DictConfig, spec: Spec) -> int:
    """Pixels of a training batch of images; 0 for other data."""
    crop = data.get("crop")
    return (
        data.batch_size * math.prod((crop, crop) if crop else spec.shape[1:]) if spec.kind == "image" else 0
    )


def _against_graphs(trainer: DictConfig, precision: ModePrecision) -> str | None:
    if precision.device.type != "cuda":
        return NO_CUDA
    if (reason := against_graphs(trainer)) is not None:
        return reason
    return _emulated(precision)


def _emulated(precision: ModePrecision) -> str | None:
    """Why steps can neither be recorded nor compiled."""
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


def _loses_compiled(precision: ModePrecision, model: nn.Module, logits: int, lengths: int) -> str | None:
    mode = precision.mode
    if lengths > 1:
        return f"texts of {lengths} lengths would be compiled {lengths} times"
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


def _against_channels_last(model: nn.Module, spec: Spec) -> str | None:
    """Tries the layout on two images."""
    if spec.kind != "image" or not any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        return "no convolutions of images"
    if any(value.dim() == 5 for value in chain(model.parameters(), model.buffers())):
        return "some weights have five dimensions, as those of nn.Conv3d"
    return fails_in_layout(model, sample(spec).repeat(2, 1, 1, 1))


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
