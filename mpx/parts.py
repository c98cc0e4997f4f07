"""What a run is made of besides data and model: the device, the precision, the measuring, the pruning."""

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from mpx.ema import Ema
from mpx.errors import UserError
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import count_flops, operation_flops
from mpx.measure.profile import Profile
from mpx.measure.throughput import Throughput
from mpx.precision.audit import Audit, complaint
from mpx.precision.modes import MODES, Mode, emulated
from mpx.precision.numerics import Numerics
from mpx.precision.plugin import ModePrecision
from mpx.render.run import print_audit
from mpx.sparsity.choose import pruning
from mpx.sparsity.recipe import Pruning


@dataclass
class Parts:
    device: torch.device
    precision: ModePrecision
    throughput: Throughput
    first_step: FirstStep
    audit: Audit
    numerics: Numerics
    flops: Any
    pruning: Pruning | None
    ema: Ema | None
    profile: Profile | None = None
    alone: list[tuple[bool | None, str | None]] = field(default_factory=list)  # each look at who else uses the device


def build_parts(cfg: DictConfig) -> Parts:
    """Raises UserError for a device or a number format that is not here."""
    device = _device(cfg)
    mode = MODES[cfg.precision.mode]
    emulate = emulated(mode, device, cfg.precision.emulate)
    flops = count_flops()
    audit = Audit(mode, emulate=emulate, flops_of=operation_flops, look_at_kernels=cfg.audit and device.type == "cuda")
    throughput = Throughput(cfg.trainer.warmup_steps)
    sparse = pruning(cfg.sparsity) if cfg.sparsity.pattern != "dense" else None
    ema = Ema(cfg.trainer.ema_decay) if cfg.trainer.ema_decay is not None else None
    precision = _precision(cfg, mode, device, emulate)
    first_step = FirstStep(flops, audit, then=partial(_judge, audit, show=cfg.audit, strict=cfg.precision.strict))
    numerics = Numerics(precision, cfg.numerics.every, histogram=cfg.numerics.histogram)
    return Parts(device, precision, throughput, first_step, audit, numerics, flops, sparse, ema)


def look_closely(cfg: DictConfig, parts: Parts, folder: Path) -> list[Profile]:
    """The callback that `profile=true` asks for, in a list, after which a pruning restarts it; nothing where it is false."""
    if not cfg.profile:
        return []
    precision = parts.precision
    parts.profile = Profile(
        parts.throughput,
        precision.mode,
        folder,
        emulated=precision.emulate,
        sampled=lambda: parts.numerics.every,
        output_dir=cfg.output_dir,
    )
    if parts.pruning is not None:
        parts.pruning.on_prune.append(parts.profile.restart)
    return [parts.profile]


def _judge(audit: Audit, *, show: bool, strict: bool) -> None:
    """After the audited step. Raises UserError where an operation ran in another format than its mode promises."""
    if show and int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print_audit(audit.record())
    if strict and (line := complaint(audit)) is not None:
        raise UserError(line)


def _precision(cfg: DictConfig, mode: Mode, device: torch.device, emulate: bool) -> ModePrecision:
    settings = OmegaConf.to_container(cfg.precision.loss_scale) if mode.scaled else {}
    max_skips = settings.pop("max_skips", None)
    return ModePrecision(mode, device, emulate=emulate, loss_scale=settings, max_skips=max_skips)


def _device(cfg: DictConfig) -> torch.device:
    wish, gpus = cfg.trainer.accelerator, torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wish == "gpu" and not gpus:
        raise UserError(
            "trainer.accelerator=gpu: no CUDA device is visible here. Use trainer.accelerator=cpu or auto, or check nvidia-smi."
        )
    device = torch.device("cuda" if gpus and wish != "cpu" else "cpu")
    asked = cfg.trainer.devices
    most = asked if isinstance(asked, int) else 1 if asked == "auto" else max(asked) + 1
    if device.type == "cuda" and most > gpus:
        raise UserError(f"trainer.devices={asked}: this machine has {gpus} GPUs. Lower trainer.devices.")
    return device
