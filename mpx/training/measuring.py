"""What a run measures while it trains: throughput, the first step's operations and FLOPs, numerics, and a profile if asked for."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mpx.acceleration.apply import Acceleration
from mpx.acceleration.choice import Choice
from mpx.errors import UserError
from mpx.launch import launch
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import count_flops, operation_flops
from mpx.measure.memory import peak_memory
from mpx.measure.profile import Profile
from mpx.measure.throughput import Throughput
from mpx.precision.audit import Audit, complaint
from mpx.precision.numerics import Numerics, sampling_interval
from mpx.precision.plugin import ModePrecision
from mpx.render.run import print_audit


@dataclass(frozen=True)
class Measuring:
    throughput: Throughput
    exclusivity: ExclusivityChecks
    flops: Any  # counts the first step's FLOPs
    audit: Audit
    first_step: FirstStep
    numerics: Numerics
    profile: Profile | None

    def of_an_epoch(self) -> dict[str, float | None]:
        """Speed and memory at the end of an epoch, for TensorBoard."""
        self.exclusivity.look()
        memory = peak_memory(self.exclusivity.device)
        kept = ("peak_allocated_gib", "peak_reserved_gib", "peak_rss_gib")
        return {"speed/train_samples_per_s": self.throughput.samples_per_s} | {f"memory/{key}": memory[key] for key in kept}


def build_measuring(cfg: DictConfig, folder: Path, precision: ModePrecision, acceleration: Acceleration, choice: Choice) -> Measuring:
    """folder: the run's; a profile writes its trace there."""
    flops, throughput = count_flops(), Throughput(cfg.trainer.warmup_steps)
    kernels_of = precision.device if cfg.audit and precision.device.type == "cuda" else None
    audit = Audit(precision.mode, emulate=precision.emulate, flops_of=operation_flops, kernels_of=kernels_of)
    first_step = FirstStep(flops, audit, then=partial(_judge, audit, show=cfg.audit, strict=cfg.precision.strict))
    every = sampling_interval(cfg.numerics.every, replayed=choice.cuda_graphs)
    numerics = Numerics(precision, every, histogram=cfg.numerics.histogram)
    profile = None
    if cfg.profile:
        profile = Profile(
            throughput, precision.mode, folder, emulated=precision.emulate, sampled=every, output_dir=cfg.output_dir,
            acceleration=acceleration, against=choice.against,
        )  # fmt: skip
    return Measuring(throughput, ExclusivityChecks(precision.device), flops, audit, first_step, numerics, profile)


def _judge(audit: Audit, *, show: bool, strict: bool) -> None:
    """Called after the audited step. Raises UserError if an operation ran in another format than its mode promises, and `strict` is set."""
    if show and launch().rank == 0:
        print_audit(audit.record())
    if strict and (line := complaint(audit)) is not None:
        raise UserError(line)
