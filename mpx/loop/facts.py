"""The parts of result.json that can be known of a loop from outside. What cannot is null, with the reason."""

from typing import Any

import torch
from torch import nn

from mpx.loop.steps import Steps
from mpx.measure.batches import SHARED, UNLIKE
from mpx.measure.ceilings import mfu
from mpx.measure.exclusive import ExclusivityChecks
from mpx.precision.modes import MODES
from mpx.precision.numerics import TAGS
from mpx.sparsity.coverage import DENSE, weighted
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.tiles import Tiles

PATTERNS: dict[str, Pattern] = {"2of4": NofM(2, 4), "2of4_2d": Tiles("best")}
UNSEEN = "mpx.Recorder sees a loop from outside"
NO_MODEL = "mpx.Recorder was given no model"


def speed(
    steps: Steps, exclusivity: ExclusivityChecks, output_dir: str, devices: int, *, each: list[int], unknown: str | None
) -> dict[str, Any]:
    """each, unknown: what `mpx.loop.ranks.Ranks.samples` returns."""
    shared = 0 in each[1:]
    flops = steps.flops.total / steps.observed if steps.observed and steps.alike and not shared else None
    found = steps.windows.record(flops, sum(each[1:]))
    exclusive, reason = exclusivity.verdict()
    found |= {"exclusive": exclusive, "exclusive_reason": reason}
    if unknown is not None and found["train_samples_per_s"] is not None:
        names = ("train_samples_per_s", "model_tflops_per_s", "mfu")
        return found | dict.fromkeys(names) | dict.fromkeys((f"{name}_reason" for name in names), unknown)
    if not steps.observed:
        return found | {"mfu": None, "mfu_reason": "no step was observed (observe=)"}
    if not steps.alike or shared:
        reason = SHARED if shared else UNLIKE
        return found | {"model_tflops_per_s_reason": reason, "mfu": None, "mfu_reason": reason}
    return found | mfu(found["model_tflops_per_s"], steps.audit.flops_by_format(), exclusivity.device, output_dir, count=devices)


def precision(name: str, steps: Steps, scaler: Any, first_scale: float | None) -> dict[str, Any]:
    """name: as the setting says. scaler: a torch.amp.GradScaler, or None."""
    mode, seen = MODES.get(name), steps.audit
    kept = seen.record()
    kept["as_promised"] = {} if mode is None else seen.shares(mode)
    found = {"mode": name, "emulated": False, "formats": None if mode is None else mode.formats}
    found |= {"formats_reason": f"{name} is not a precision mode of mpx"} if mode is None else {}
    found |= {"observed": seen.observed(), "audit": kept, "loss_scale": None}
    scaled = scaler is not None and scaler.is_enabled()
    if scaled:
        found["loss_scale"] = {"initial": first_scale, "final": scaler.get_scale(), "min": None, "max": None, "dynamic": True}
        found["loss_scale"]["reason"] = UNSEEN
    found |= {"optimizer_steps": None if scaled else steps.number, "skipped_steps": None, "skipped_steps_reason": UNSEEN}
    found |= {"optimizer_steps_reason": UNSEEN} if scaled else {}
    return found | dict.fromkeys(TAGS) | {"gradient_samples": 0, "reason": UNSEEN}


@torch.no_grad()
def sparsity(name: str, model: nn.Module | None) -> dict[str, Any]:
    """name: as the setting says. A layer counts as pruned if at least half of its weights are zero, but not all, as in a new head."""
    if model is None:
        return DENSE | {"pattern": name} | ({} if name == "dense" else {"pruned_share": None, "reason": NO_MODEL})
    pattern, rows, verified = PATTERNS.get(name), [], []
    for weight in weights(model, pattern or NofM(2, 4), Rules()):
        values = weight.parameter.detach()
        density = float((values != 0).double().mean())
        pruned = 0 < density <= 0.5
        if pruned and pattern is not None:
            verified.append(bool(pattern.holds(values)))
        why = "more than half of its weights are not zero" if density else "all of its weights are zero"
        reason = None if pruned else weight.reason or why
        rows.append(
            {"name": weight.name, "type": weight.type, "shape": list(values.shape), "pruned": pruned, "reason": reason, "density": density,
             "kept_magnitude": None, "sparse_kernel": None, "sparse_kernel_reason": None}
        )  # fmt: skip
    if name == "dense":
        return DENSE | {"pruned_share": 1 - weighted(rows, "density") if rows else None}
    found = DENSE | {"pattern": name, "density": weighted([row for row in rows if row["pruned"]], "density"), "layers": rows}
    found["pruned_share"] = 1 - weighted(rows, "density") if rows else None
    found["verified"] = None if pattern is None else bool(verified) and all(verified)
    return found | {"kept_magnitude_reason": UNSEEN} | ({} if pattern else {"verified_reason": f"mpx.Recorder cannot verify {name}"})
