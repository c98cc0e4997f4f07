"""What a run measures while it trains: throughput, the first step's operations and FLOPs, numerics, and a
profile if asked for.
"""

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from mpx.acceleration.apply import Acceleration, Choice
from mpx.errors import UserError
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep, WatchFirstStep
from mpx.measure.memory import peak_memory
from mpx.measure.throughput import Throughput
from mpx.precision.audit import Audit, complaint
from mpx.precision.numerics import Numerics, sampling_interval
from mpx.precision.plugin import ModePrecision
from mpx.record.parts import audit_of
from mpx.render.run import print_audit
from mpx.system.launch import launch

if TYPE_CHECKING:
    from mpx.measure.profile import Profile


@dataclass(frozen=True)
class Measuring:
    throughput: Throughput
    exclusivity: ExclusivityChecks
    watch: WatchFirstStep
    numerics: Numerics
    profile: "Profile | None"

    @property
    def first(self) -> FirstStep:
        return self.watch.first

    def of_an_epoch(self) -> dict[str, Any]:
        """Speed and memory at the end of an epoch, for TensorBoard."""
        self.exclusivity.look()
        memory = peak_memory(self.exclusivity.device)
        kept = ("peak_allocated_gib", "peak_reserved_gib", "peak_rss_gib")
        return {"speed/train_samples_per_s": self.throughput.samples_per_s} | {
            f"memory/{key}": memory[key] for key in kept
        }


def build_measuring(
    cfg: DictConfig,
    folder: Path,
    precision: ModePrecision,
    acceleration: Acceleration,
    choice: Choice,
    *,
    project: bool = False,
) -> Measuring:
    """folder: the run's; a profile writes its trace there. project: for a module of the user's own. Its steps
    may be short, so they are sampled as rarely as beside a CUDA graph.
    """
    throughput = Throughput(max(cfg.trainer.warmup_steps, acceleration.warmup()), logs=False)
    kernels_of = precision.device if cfg.audit and precision.device.type == "cuda" else None
    then = partial(conclude_audit, precision, show=cfg.audit, strict=cfg.precision.strict)
    watch = WatchFirstStep(FirstStep(audit_of(precision, kernels_of), then))
    every = sampling_interval(cfg.numerics.every, replayed=choice.cuda_graphs or project)
    numerics = Numerics(
        every,
        histogram=cfg.numerics.histogram,
        network=None if project else attrgetter("model"),
    )
    profile = None
    if cfg.profile:
        from mpx.measure.profile import Profile  # torch.profiler

        profile = Profile(
            throughput, folder, sampled=every, emulated=precision.emulate, against=choice.against
        )
    return Measuring(throughput, ExclusivityChecks(precision.device), watch, numerics, profile)


def conclude_audit(precision: ModePrecision, audit: Audit, *, show: bool, strict: bool) -> None:
    """strict: raise UserError for an operation in another format than the mode promises."""
    if show and launch().rank == 0:
        print_audit(audit.record())
    if strict and (line := complaint(audit)) is not None:
        raise UserError(line)
