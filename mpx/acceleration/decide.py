"""Gather the facts that the choice depends on: what speaks against CUDA graphs, torch.compile, cuDNN's search and channels_last?"""

import math

import torch
from omegaconf import DictConfig
from torch import nn

from mpx.acceleration.choice import NO_CUDA, Choice, Facts, choose
from mpx.acceleration.layout import fails_in_layout, without_layout
from mpx.acceleration.payoff import Notebook, typical
from mpx.machine import builds_kernels
from mpx.measure.environment import VERSION
from mpx.models.probe import sample
from mpx.precision.plugin import ModePrecision
from mpx.precision.recurrent import has_rnn
from mpx.private.torch_modules import CONVOLUTION
from mpx.settings.check import against_graphs
from mpx.spec import Spec

# Values of a channel. In channels_last on a CPU, PyTorch 2.15 sums them one by one in FP32; experiments/speed/README.md has the errors.
MAX_SUMMED = 2**17
# Logits of a language model for one position of a batch. Compiling the loss of so many would save about a sixth of a recurrent step; of
# WikiText-2's 2,662,240 it saves more than a quarter (experiments/language_model), and of few nothing: cuDNN's layers take all the time.
LARGE_LOSS = 1_000_000


def decide(
    cfg: DictConfig,
    precision: ModePrecision,
    model: nn.Module,
    spec: Spec,
    steps: int,
    *,
    done: int = 0,
    notebook: Notebook | None = None,
) -> Choice:
    """Choose the accelerations of a run. Raises UserError for a request that cannot be met.

    steps: optimizer steps of the whole run. done: steps before the run was resumed. notebook: what is known of its steps on this machine.
    """
    on_gpu = precision.device.type == "cuda"
    filters = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    pixels = _pixels(cfg.data, spec)
    figures = typical(bool(filters), precision.mode.matmul)
    facts = Facts(
        cuda=on_gpu,
        steps=steps,
        batches=(steps - done) * cfg.trainer.accumulate_grad_batches,
        figures=figures if notebook is None else notebook.read(figures),
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
    return choose(cfg.speed, trainer.compile, trainer.cuda_graphs, trainer.benchmark, trainer.channels_last, facts)


def notebook_of(cfg: DictConfig, precision: ModePrecision, model: nn.Module, spec: Spec, ranks: int) -> Notebook | None:
    """The figures of this run's steps on this machine, by what decides on their speed. None where nothing compiles by itself, and for
    several processes, which would read them at different moments and then not decide alike.

    The loss's options and the masks are left out: they change no step noticeably.
    """
    if precision.device.type != "cuda" or ranks > 1:
        return None
    shapes = [(name, tuple(weight.shape)) for name, weight in model.named_parameters()]
    switches = [cfg.trainer[key] for key in ("cuda_graphs", "channels_last", "accumulate_grad_batches")]
    data = (spec, cfg.data.batch_size, cfg.data.get("crop"))
    where = (torch.cuda.get_device_name(precision.device), torch.__version__, VERSION)
    mode = (precision.mode.name, cfg.precision.get("layers"))
    return Notebook(str(model), *map(repr, (shapes, data, mode, cfg.optimizer.name, switches, where)))


def _pixels(data: DictConfig, spec: Spec) -> int:
    """Pixels of a training batch of images; 0 for other data."""
    crop = data.get("crop")
    return data.batch_size * math.prod((crop, crop) if crop else spec.shape[1:]) if spec.kind == "image" else 0


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
    """Why a recorded or compiled step is slower for a transformers model with padding; None for any other model.

    In an ordinary step transformers sees whether a mask is needed. In a recorded or compiled one it cannot, and writes out the whole mask.
    """
    masked = getattr(model, "mpx_pad_id", None) is not None
    return "transformers writes out the whole attention mask then and cannot use its fast kernels" if masked else None


def _against_compiling(precision: ModePrecision) -> str | None:
    return f"precision={precision.mode.name} is emulated here, operation by operation" if precision.emulate else None


def _loses_compiled(precision: ModePrecision, model: nn.Module, logits: int) -> str | None:
    mode = precision.mode
    if (masked := masks_in_full(model)) is not None:
        return masked
    if has_rnn(model) and logits < LARGE_LOSS:
        return "recurrent layers are cuDNN's, not the compiler's"
    if mode.master or mode.emulates == "tf32":
        return f"precision={mode.name} replaces weights or layers as it goes"
    if not builds_kernels(precision.device.type):
        return f"no {'C' if precision.device.type == 'cuda' else 'C++'} compiler with Python's header files here"
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
        return "no oneDNN, with which it was measured"
    if pixels > MAX_SUMMED and any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        return f"batch norm would sum {pixels:,} values of a channel in FP32 one by one, above {MAX_SUMMED:,} that is inaccurate"
    return None
