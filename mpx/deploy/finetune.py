"""Quantisation-aware fine-tuning: train a model with the 8-bit operands that serving multiplies.

Batch norms are folded before training, as in serving: the rows of a folded weight have other scales, and running statistics would keep
changing them. The norms that are not folded keep their statistics.

Operands are rounded by the same products as in serving. PyTorch's fake_quantize multiplies by the inverse scale, which rounds some weights
differently. Gradients pass straight through the rounding (Bengio et al., arXiv:1308.3432). Zero weights stay zero, so masks hold.
"""

import copy
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.lr_scheduler import LinearLR

from mpx.data.loaders import TrainLoader
from mpx.deploy.build import Trained, in_format
from mpx.deploy.kernels import Kernel, dense_kernels
from mpx.deploy.measure import Samples, finite
from mpx.deploy.products import Fp8, Quantised
from mpx.deploy.recurrent import apart
from mpx.errors import UserError
from mpx.measure.memory import out_of_memory
from mpx.models.evaluating import evaluating
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.private.torch_modules import NORM_WITH_STATISTICS
from mpx.runs.folder import RESULT
from mpx.settings.values import check_value, leaves
from mpx.spec import Spec
from mpx.training.loss import loss_of
from mpx.training.optimizer import build_optimizer
from mpx.training.tasks import monitored

LINES = 5  # of progress in an epoch
Metrics = dict[str, float]


@dataclass(frozen=True)
class Operands:
    """The operands that serving rounds. largest: the input range of each layer, by name. dtype: of weights and inputs before rounding."""

    fmt: str
    largest: Mapping[str, float]
    dtype: torch.dtype


@dataclass(frozen=True)
class Tuning:
    """How to train, from the settings of the run. epochs: may be a fraction. The learning rate falls linearly to zero."""

    epochs: float
    optimizer: DictConfig
    data: dict[str, Any]
    label_smoothing: float
    seed: int


def tuning_of(config: dict[str, Any], epochs: float, lr_share: float) -> Tuning:
    """config: of the run. lr_share: share of its learning rate. Raises UserError if the record lacks settings of a training."""
    try:
        run = {key: config[key] for key in ("optimizer", "label_smoothing", "seed")}
        lr = {key: run["optimizer"][key] for key in ("name", "weight_decay", "lr")}["lr"]
    except (LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"finetune.epochs={epochs:g}: the run's record lacks settings of its training ({reason}). Use finetune.epochs=0."
        ) from error
    try:
        for key, value in leaves(run):
            check_value(key, value)
    except UserError as error:
        problem = str(error).partition(". ")[0]  # the rest asks for other settings of a training
        raise UserError(f"finetune.epochs={epochs:g}: the run's {RESULT} is damaged ({problem}). Use finetune.epochs=0.") from error
    optimizer = OmegaConf.create(run["optimizer"] | {"lr": lr_share * lr})
    return Tuning(epochs, optimizer, config["data"], run["label_smoothing"], run["seed"])


def finetuned(found: Trained, tuning: Tuning, operands: Operands, val: Samples) -> tuple[Trained, dict[str, Any]]:
    """(the model of the epoch that was best on `val` with rounded operands, the entry for deploy.json).

    The model is `found` if no epoch helped. Raises UserError if no layer multiplies 8 bits, or if memory runs out.
    """
    mode = MODES["fp32" if val.device.type == "cpu" else "tf32"]  # TF32 rounds far less than 8 bits do
    cuda = [val.device] if val.device.type == "cuda" else []
    with torch.enable_grad(), float32_matmuls(mode, emulate=False), torch.random.fork_rng(cuda):
        torch.manual_seed(tuning.seed)
        model = in_format(found, mode, val.device).requires_grad_()
        weights = dict(model.named_parameters())
        model = apart(model, operands.largest)
        round_operands(model, operands)
        try:
            before, after, best = _train(model, tuning, found, val, weights)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            batch = f"the run's data.batch_size={tuning.data['batch_size']}"
            raise UserError(
                f"finetune.epochs={tuning.epochs:g} needs more memory than there is for {batch}. Use finetune.epochs=0."
            ) from error
    if best is not None:
        model = copy.deepcopy(found.model)
        model.load_state_dict(best, strict=False)  # all but the buffers
        found = Trained(model, found.data)
    record = {"epochs": tuning.epochs, "lr": tuning.optimizer.lr, "before": finite(before), "after": finite(after)}
    return found, record | {"kept": best is not None}


def round_operands(model: nn.Module, operands: Operands) -> None:
    """Let every layer that serving quantises compute with rounded weights and inputs. Raises UserError if there is none."""
    rounded = 0
    for name, largest in operands.largest.items():
        layer = model.get_submodule(name)
        if layer.weight.is_cuda and not dense_kernels(layer, operands.fmt)[0]:
            continue
        product = Kernel(operands.fmt).serve(layer, largest).product
        layer.register_forward_pre_hook(_inputs_as_served(product, largest, operands.dtype))
        parametrize.register_parametrization(layer, "weight", WeightAsServed(product, operands.dtype))
        rounded += 1
    if not rounded:
        raise UserError(f"finetune.epochs: no layer of this model multiplies {operands.fmt.upper()}. Use finetune.epochs=0.")


class WeightAsServed(nn.Module):
    """A parametrization: the weight with the values to which a product rounds it."""

    def __init__(self, product: Quantised | Fp8, dtype: torch.dtype):
        super().__init__()
        self.quantise, self.dtype = product.quantise, dtype

    def forward(self, weight: Tensor) -> Tensor:
        values, scale = self.quantise(weight.detach().flatten(1).to(self.dtype))
        return _straight_through(weight, (values.float() * scale.view(-1, 1)).view_as(weight))


def _inputs_as_served(product: Quantised | Fp8, largest: float, dtype: torch.dtype) -> Callable[[nn.Module, tuple], tuple]:
    def rounded(layer: nn.Module, args: tuple) -> tuple:
        x, *others = args
        served = product.prepare(x.detach().to(dtype)).float() * product.step
        return _straight_through(x.clamp(-largest, largest), served), *others

    return rounded


def _straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Exactly the values of `rounded`, with the gradient of `x`."""
    return rounded + (x - x.detach())


def _train(
    model: nn.Module, tuning: Tuning, found: Trained, val: Samples, weights: Mapping[str, Tensor]
) -> tuple[Metrics, Metrics, dict[str, Tensor] | None]:
    """(metrics before training, metrics of the best epoch, its weights). The weights are None if no epoch is better than no training."""
    data, score = tuning.data, partial(_score, spec=val.spec)

    def look(when: str) -> Metrics:
        with evaluating(model), torch.no_grad():
            return _say(when, val.evaluate(model, data["eval_batch_size"], "val"))

    before, looks, best = look("before"), [], None
    with Samples(found.data.train, val.spec, data, val.device, tuning.seed) as train:
        loader = TrainLoader(train.reader, len(train), data["batch_size"], tuning.seed)
        steps = max(1, round(tuning.epochs * len(loader)))
        for step, loss in enumerate(_steps(model, tuning, islice(_batches(loader), steps), steps, val.spec.task), 1):
            done = f"epoch {step / len(loader):.3g}/{tuning.epochs:g}"
            if step % math.ceil(len(loader) / LINES) == 0:
                _say(done, {"loss": loss.item()})
            if step % len(loader) == 0 or step == steps:
                looks.append(look(done))
                if score(looks[-1]) > max(map(score, (before, *looks[:-1]))):
                    best = {name: value.detach().cpu().clone() for name, value in weights.items()}
    return before, max(looks, key=score), best


def _batches(loader: TrainLoader) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def _steps(
    model: nn.Module, tuning: Tuning, batches: Iterator[tuple[Tensor, Tensor]], steps: int, task: str = "classification"
) -> Iterator[Tensor]:
    """The loss of each step. Zero weights of matrices get no gradient, and hence no momentum."""
    optimizer = build_optimizer(model, tuning.optimizer)
    schedule = LinearLR(optimizer, 1.0, 0.0, steps)
    pruned = [(weight, away) for weight in model.parameters() if weight.dim() >= 2 and (away := weight == 0).any()]
    model.train()
    for layer in model.modules():
        if isinstance(layer, NORM_WITH_STATISTICS):
            layer.eval()
    for x, y in batches:
        loss = loss_of(model(x), y, tuning.label_smoothing, task)
        optimizer.zero_grad()
        loss.backward()
        for weight, away in pruned:
            if weight.grad is not None:
                weight.grad.masked_fill_(away, 0)
        optimizer.step()
        schedule.step()
        yield loss.detach()


def _score(metrics: Metrics, spec: Spec) -> tuple[float, float]:
    """A sort key, larger is better: by what best.ckpt goes by in training, then by the loss."""
    name, goal = monitored(spec)
    return (metrics[name] if goal == "max" else -metrics[name], -metrics["val/loss"])


def _say(when: str, metrics: Metrics) -> Metrics:
    values = "  ".join(f"{name.replace('/', ' ')} {value:.4f}" for name, value in metrics.items())
    print(f"fine-tuning, {when}: {values}", file=sys.stderr, flush=True)
    return metrics
