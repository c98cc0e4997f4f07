"""What the parts of a Trainer have measured, in the form of result.json."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.precision import Precision

from mpx.errors import UserError, nearest
from mpx.measure.batches import SHARED, samples_in
from mpx.measure.ceilings import mfu
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import FlopCounter, model_flops
from mpx.measure.memory import peak_memory
from mpx.measure.throughput import Throughput, replicas
from mpx.precision.audit import Audit
from mpx.precision.numerics import Numerics
from mpx.precision.plugin import ModePrecision
from mpx.precision.plugin_mode import mode_of
from mpx.record.result import EMULATED, SPEED, metric_name
from mpx.sparsity.callback import Pruning
from mpx.sparsity.coverage import DENSE


@dataclass(frozen=True)
class Observation:
    """Of the first step: its FLOPs, and the formats of its operations."""

    flops: FlopCounter
    audit: Audit
    step: FirstStep


def observe_first_step(
    plugin: Precision,
    then: Callable[[Audit], None] = lambda audit: None,
    kernels_of: torch.device | None = None,
    samples: Callable[[Any], int] = samples_in,
) -> Observation:
    """then: called after the step. kernels_of: a device whose kernels the audit reads, too. samples: as in FirstStep."""
    flops = FlopCounter()
    audit = Audit(mode_of(plugin), emulate=is_emulated(plugin), flops_of=model_flops, kernels_of=kernels_of)
    return Observation(flops, audit, FirstStep(flops, audit, then=partial(then, audit), samples=samples))


def is_emulated(plugin: Precision) -> bool:
    return isinstance(plugin, ModePrecision) and plugin.emulate


def find(trainer: pl.Trainer, kind: type[Callback]) -> Any:
    """The Trainer's first callback of this class; None if it has none."""
    return next((callback for callback in trainer.callbacks if isinstance(callback, kind)), None)


def metrics_of(trainer: pl.Trainer) -> dict[str, float]:
    """All values that the module has logged in the newest stage, by their names in the record."""
    return {metric_name(name): float(value) for name, value in trainer.callback_metrics.items()}


class Newest(dict[str, float]):
    """The newest value of everything that the module logs, by its name in the record. `forget` is for a model that has just been pruned."""

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, torch.Tensor] = {}  # which the Trainer keeps until the module logs them again

    def take(self, trainer: pl.Trainer) -> None:
        fresh = {name: value for name, value in trainer.callback_metrics.items() if value is not self._old.get(name)}
        self |= {metric_name(name): float(value) for name, value in fresh.items()}

    @property
    def names(self) -> set[str]:
        """The names of everything that the module has logged, also before `forget`."""
        return {*self, *map(metric_name, self._old)}

    def forget(self, trainer: pl.Trainer) -> None:
        self._old = dict(trainer.callback_metrics)
        self.clear()


def refuse_missing(metric: str | None, trainer: pl.Trainer, found: Container[str]) -> None:
    """Raise UserError where the module has not logged `metric`. found: the names in the record of what it has logged."""
    if metric is not None and metric_name(metric) not in found:
        if metric in trainer.logged_metrics:
            raise UserError(f"metric={metric}: the module logs it for single steps alone. Log it with on_epoch=True, or name another.")
        there = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
        raise UserError(
            f"metric={metric}: the module logs no such value.{nearest(metric, trainer.callback_metrics)} It logs {there}. Name one of them."
        )


def speed_part(
    throughput: Throughput, seen: Observation, exclusivity: ExclusivityChecks, output_dir: str | Path, trainer: pl.Trainer
) -> dict[str, Any]:
    """output_dir: where mpx.bench may have left this machine's limits."""
    exclusive, reason = exclusivity.verdict()
    unlike = seen.step.unlike if replicas(trainer) == trainer.world_size else SHARED
    emulated = seen.audit.emulate
    speed = throughput.record(seen.flops.total / seen.step.samples if seen.step.samples and unlike is None else None)
    speed |= {"exclusive": exclusive, "exclusive_reason": reason} | _others(exclusivity, trainer.world_size)
    speed |= {} if unlike is None else {"model_tflops_per_s_reason": unlike}
    if emulated or unlike is not None:
        return speed | {"mfu": None, "mfu_reason": EMULATED if emulated else unlike}
    return speed | mfu(speed["model_tflops_per_s"], seen.audit.flops_by_format(), exclusivity.device, output_dir, count=trainer.world_size)


def _others(exclusivity: ExclusivityChecks, world: int) -> dict[str, Any]:
    """The share of the CPU cores that other programs have used while the run trained."""
    if world > 1:
        return {"cpu_used_by_others": None, "cpu_used_by_others_reason": "the run's own processes count as others, too"}
    share = exclusivity.cpu.share()
    return {"cpu_used_by_others": share} | ({} if share is not None else {"cpu_used_by_others_reason": "only Linux tells"})


def precision_part(plugin: Precision, audit: Audit, numerics: Numerics | None, steps: int) -> dict[str, Any]:
    """steps: of the optimizers. Lightning's own plugins do not tell which of them a GradScaler skipped."""
    mode = mode_of(plugin)
    found = {"mode": mode.name, "emulated": is_emulated(plugin), "formats": mode.formats}
    found |= {"observed": audit.observed(), "audit": audit.record()}
    if isinstance(plugin, ModePrecision):
        found |= plugin.record()
    else:
        scaler = getattr(plugin, "scaler", None)
        if scaler is None:
            found |= {"loss_scale": None, "optimizer_steps": steps, "skipped_steps": 0}
        else:
            found |= {"loss_scale": {"final": scaler.get_scale()}, "optimizer_steps": None, "skipped_steps": None}
            found |= dict.fromkeys(("optimizer_steps_reason", "skipped_steps_reason"), "mpx.Precision counts them")
    return found | (numerics.record() if numerics is not None else {"gradient_samples": 0})


def sparsity_part(pruning: Pruning | None, fmt: str, device: torch.device) -> dict[str, Any]:
    """fmt: the number format of the run's matrix products."""
    return dict(DENSE) if pruning is None or not pruning.masks.weights else pruning.record(fmt=fmt, device=device)


def parts_of(trainer: pl.Trainer, seen: Observation, exclusivity: ExclusivityChecks, output_dir: str | Path) -> Mapping[str, Any]:
    """The speed, memory, precision and sparsity of a Trainer's run. A part that is not in the Trainer has measured nothing."""
    plugin, device, throughput = trainer.precision_plugin, exclusivity.device, find(trainer, Throughput)
    nothing = dict.fromkeys(SPEED) | {"measured_steps": 0, "reason": "no mpx.Throughput in the Trainer"}
    return {
        "speed": nothing if throughput is None else speed_part(throughput, seen, exclusivity, output_dir, trainer),
        "memory": peak_memory(device),
        "precision": precision_part(plugin, seen.audit, find(trainer, Numerics), trainer.global_step),
        "sparsity": sparsity_part(find(trainer, Pruning), mode_of(plugin).narrowest, device),
    }
