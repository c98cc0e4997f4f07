"""Join the speed room to a run: what stands in the way of CUDA graphs and of compiling, and the module's two ways to run a step."""

import os
import shutil
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from torch import nn

from mpx.parts import Parts
from mpx.precision.rnn import has_rnn
from mpx.speed.choice import Choice, Facts, choose
from mpx.speed.compiled import Compiled
from mpx.speed.graph import StepGraph

COMPILERS = ("cc", "gcc", "clang", "g++")


def decide(cfg: DictConfig, parts: Parts, model: nn.Module, steps: int, devices: int) -> Choice:
    """steps: optimizer steps of the whole run. devices: how many train together. Raises UserError for a wish that cannot be met."""
    mode = parts.precision.mode
    facts = Facts(
        cuda=parts.device.type == "cuda",
        steps=steps,
        against_graphs=_against_graphs(cfg, parts, devices),
        against_compiling=f"precision={mode.name} is emulated here, operation by operation" if parts.precision.emulate else None,
        loses_recorded=masks_in_full(model),
        loses_compiled=_loses_compiled(parts, model),
        against_search=_against_search(cfg, model),
    )
    return choose(cfg.speed, cfg.trainer.compile, cfg.trainer.cuda_graphs, cfg.trainer.benchmark, facts)


def _against_graphs(cfg: DictConfig, parts: Parts, devices: int) -> str | None:
    if parts.device.type != "cuda":
        return "no CUDA device"
    if devices > 1:
        return "several devices synchronise within a step"
    if cfg.trainer.accumulate_grad_batches > 1:
        return "trainer.accumulate_grad_batches is above 1, so that not all batches do the same"
    if parts.precision.emulate:
        return f"precision={parts.precision.mode.name} is emulated here, operation by operation"
    if parts.pruning is not None and not parts.pruning.recipe.fixed:
        return f"sparsity.recipe={parts.pruning.recipe.name} chooses new masks at every step"
    return None


def masks_in_full(model: nn.Module) -> str | None:
    """Whether transformers would write out the whole attention mask, which in a recording or compiled it cannot see to be needless.

    BERT-base, 256×128 tokens in BF16 on an H200: 13.9 ms as it is, 34.6 recorded, 19.4 compiled.
    """
    masked = getattr(model, "mpx_pad_id", None) is not None and model.padded
    return "transformers writes out the whole attention mask then, which costs its fast kernels" if masked else None


def _loses_compiled(parts: Parts, model: nn.Module) -> str | None:
    mode = parts.precision.mode
    if (masked := masks_in_full(model)) is not None:
        return masked
    if has_rnn(model):
        return "recurrent layers are cuDNN's, not the compiler's"
    if mode.master or mode.emulates in ("tf32", "fp8"):
        return f"precision={mode.name} replaces weights or layers as it goes"
    if not any(shutil.which(name) for name in COMPILERS):
        return "no C compiler here"
    return None


def _against_search(cfg: DictConfig, model: nn.Module) -> str | None:
    if not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.modules()):
        return "no convolutions"
    return "audit=true looks at the kernels of an ordinary step" if cfg.audit else None


def attach(module: pl.LightningModule, choice: Choice, parts: Parts) -> None:
    """Give the module its graph and its compiled loss, as chosen; say so, unless there was nothing to choose."""
    if parts.device.type == "cuda" or choice.compile != "off":
        say(choice.line())
    module.benchmark = choice.benchmark
    if choice.cuda_graphs:
        module.graph = StepGraph(module.model, lambda: masks(parts), required=choice.by_hand, tell=say)
    if choice.compile != "off":
        asked = choice.why["compile"].startswith("trainer.compile")
        module.compiled = Compiled(module.forward_loss, choice.compile, in_graph=choice.cuda_graphs, required=asked, tell=say)


def masks(parts: Parts) -> Any:
    """Another object whenever the masks are other tensors."""
    return parts.pruning.masks.masks if parts.pruning is not None else None


def say(line: str) -> None:
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(line, flush=True)


def record(module: pl.LightningModule, choice: Choice) -> dict[str, Any]:
    """What was chosen and what came of it, for result.json."""
    found = choice.record()
    if module.graph is not None:
        found["graph"] = module.graph.record()
    if module.compiled is not None:
        found["compiled"] = module.compiled.record()
    return found
