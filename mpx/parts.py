"""What a run is made of besides data and model: the device, the precision, the measuring, the pruning."""

from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from mpx.errors import UserError
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import count_flops
from mpx.measure.throughput import Throughput
from mpx.precision.modes import MODES, emulated
from mpx.precision.observe import Observe
from mpx.precision.plugin import ModePrecision
from mpx.sparsity.recipe import Pruning


@dataclass
class Parts:
    device: torch.device
    precision: ModePrecision
    throughput: Throughput
    first_step: FirstStep
    observed: Observe
    flops: Any
    pruning: Pruning | None
    alone: list[tuple[bool | None, str | None]] = field(default_factory=list)  # each look at who else uses the device


def build_parts(cfg: DictConfig) -> Parts:
    """Raises UserError for a device or a number format that is not here."""
    device = _device(cfg)
    mode = MODES[cfg.precision.mode]
    emulate = emulated(mode, device, cfg.precision.emulate)
    scale = OmegaConf.to_container(cfg.precision.loss_scale) if "loss_scale" in cfg.precision else None
    observed, flops = Observe(mode, emulate=emulate), count_flops()
    throughput = Throughput(cfg.trainer.warmup_steps)
    pruning = None
    if cfg.sparsity.pattern != "dense":
        pruning = Pruning(shape_rule=cfg.sparsity.shape_rule, skip=tuple(cfg.sparsity.skip))
    precision = ModePrecision(mode, device, emulate=emulate, loss_scale=scale)
    return Parts(device, precision, throughput, FirstStep(flops, observed), observed, flops, pruning)


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
