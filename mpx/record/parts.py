"""The parts of result.json, from what was measured. What is unknown is null, with the reason."""

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.precision import Precision
from torch import nn

from mpx.measure.ceilings import mfu
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import model_flops
from mpx.measure.windows import Windows
from mpx.precision.audit import Audit
from mpx.precision.modes import MODES
from mpx.precision.numerics import TAGS, Numerics
from mpx.precision.plugin import ModePrecision, mode_of
from mpx.runs.result import EMULATED
from mpx.sparsity.callback import Pruning
from mpx.sparsity.coverage import DENSE, weighted
from mpx.sparsity.layers import Rules, Weight, weights
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.tiles import Tiles

PATTERNS: dict[str, Pattern] = {"2of4": NofM(2, 4), "2of4_2d": Tiles("best")}
UNSEEN = "mpx.Recorder sees a loop from outside"


def audit_of(plugin: Precision, kernels_of: torch.device | None = None) -> Audit:
    """kernels_of: a device whose kernels the audit reads, too."""
    emulate = isinstance(plugin, ModePrecision) and plugin.emulate
    return Audit(mode_of(plugin), emulate=emulate, flops_of=model_flops, kernels_of=kernels_of)


def speed_part(
    windows: Windows,
    first: FirstStep,
    exclusivity: ExclusivityChecks,
    output_dir: str | Path,
    *,
    devices: int,
) -> dict[str, Any]:
    """output_dir: where mpx.bench may have left this machine's limits. devices: that train."""
    speed, unlike = windows.record(first.flops_per_sample), first.unlike
    used = _cpu_use(windows, devices)
    exclusive, why_not = exclusivity.verdict(used["cpu_used_by_others"])
    speed |= {"exclusive": exclusive, "exclusive_reason": why_not} | used
    speed |= {} if unlike is None else {"model_tflops_per_s_reason": unlike}
    if first.audit.emulate or unlike is not None:
        return speed | {"mfu": None, "mfu_reason": EMULATED if first.audit.emulate else unlike}
    tflops, formats = speed["model_tflops_per_s"], first.audit.flops_by_format()
    return speed | mfu(tflops, formats, exclusivity.device, output_dir, count=devices)


def _cpu_use(windows: Windows, devices: int) -> dict[str, Any]:
    """The share of the CPU cores' time that other programs used from the first timed step to the end."""
    if devices > 1:
        return {
            "cpu_used_by_others": None,
            "cpu_used_by_others_reason": "the run's own processes count as others, too",
        }
    share = windows.cpu_used_by_others()
    unknown = {"cpu_used_by_others_reason": "no step was timed, or the system is not Linux"}
    return {"cpu_used_by_others": share} | (unknown if share is None else {})


def precision_part(plugin: Precision, audit: Audit, numerics: Numerics | None, steps: int) -> dict[str, Any]:
    """The part of a run in a Lightning Trainer. steps: of the optimizers, where mpx's plugin does not count
    them. Lightning's own plugins do not tell which of them a GradScaler skipped.
    """
    mode = mode_of(plugin)
    part: dict[str, Any] = {"mode": mode.name, "emulated": audit.emulate, "formats": mode.formats}
    part |= {"observed": audit.observed(), "audit": audit.record()}
    part |= (
        plugin.record()
        if isinstance(plugin, ModePrecision)
        else _scaling(getattr(plugin, "scaler", None), steps)
    )
    return part | (numerics.record() if numerics is not None else {"gradient_samples": 0})


def loop_precision_part(
    name: str, audit: Audit, scaler: Any, initial: float | None, steps: int
) -> dict[str, Any]:
    """The part of a loop whose setting has this precision. scaler: a torch.amp.GradScaler, or None. initial:
    its scale before the first step.
    """
    mode = MODES.get(name)
    part = {
        "mode": name,
        "emulated": False,
        "formats": None,
        "formats_reason": f"{name} is not a precision mode of mpx",
    }
    if mode is not None:
        part = {"mode": name, "emulated": False, "formats": mode.formats}
    as_promised = {} if mode is None else audit.shares(mode)
    part |= {"observed": audit.observed(), "audit": audit.record() | {"as_promised": as_promised}}
    return (
        part
        | _scaling(scaler, steps, initial)
        | {"skipped_steps": None, "skipped_steps_reason": UNSEEN}  # a scaler may not be shown
        | dict.fromkeys(TAGS)
        | {"gradient_samples": 0, "reason": UNSEEN}
    )


def _scaling(scaler: Any, steps: int, initial: float | None = None) -> dict[str, Any]:
    """Loss scale and steps by a torch.amp.GradScaler, or None, which does not tell the steps that it
    skipped.
    """
    if scaler is None or not scaler.is_enabled():
        return {"loss_scale": None, "optimizer_steps": steps, "skipped_steps": 0}
    scale = {
        "initial": initial,
        "final": scaler.get_scale(),
        "min": None,
        "reason": "mpx.Precision records the others",
    }
    unknown = ("optimizer_steps", "skipped_steps")
    reasons = {f"{name}_reason": "mpx.Precision counts them" for name in unknown}
    return {"loss_scale": scale} | dict.fromkeys(unknown) | reasons


def sparsity_part(pruning: Pruning | None, fmt: str, device: torch.device) -> dict[str, Any]:
    """The part of a run in a Lightning Trainer. fmt: the number format of the run's matrix products."""
    return (
        dict(DENSE)
        if pruning is None or not pruning.masks.weights
        else pruning.record(fmt=fmt, device=device)
    )


@torch.no_grad()
def loop_sparsity_part(name: str, model: nn.Module | None) -> dict[str, Any]:
    """The part of a loop whose setting has this sparsity, measured from the weights."""
    part: dict[str, Any] = DENSE | {"pattern": name}
    if model is None:
        return (
            part
            if name == "dense"
            else part | {"pruned_share": None, "reason": "mpx.Recorder was given no model"}
        )
    pattern = PATTERNS.get(name)
    found = weights(model, pattern or NofM(2, 4), Rules())
    rows = [_row(weight) for weight in found]
    part["pruned_share"] = 1 - (weighted(rows, "density") or 0.0) if rows else None
    if name == "dense":
        return part
    part |= {"density": weighted([row for row in rows if row["pruned"]], "density"), "layers": rows}
    part |= {"kept_magnitude_reason": UNSEEN}
    if pattern is None:
        return part | {"verified_reason": f"mpx.Recorder cannot verify {name}"}
    pruned = [weight.parameter for weight, row in zip(found, rows, strict=True) if row["pruned"]]
    return part | {
        "verified": bool(pruned) and all(bool(pattern.holds(values.detach())) for values in pruned)
    }


def _row(weight: Weight) -> dict[str, Any]:
    """A weight counts as pruned if at least half of its values are zero, but not all, as in a new head."""
    density = float((weight.parameter != 0).double().mean())
    pruned = 0 < density <= 0.5
    dense = weight.reason or (
        "more than half of its weights are not zero" if density else "all of its weights are zero"
    )
    known = {
        "name": weight.name,
        "type": weight.type,
        "shape": list(weight.parameter.shape),
        "density": density,
    }
    unknown = dict.fromkeys(("kept_magnitude", "sparse_kernel", "sparse_kernel_reason"))
    return known | unknown | {"pruned": pruned, "reason": None if pruned else dense}
