"""Serve one run in one format: build it, choose how to serve it, measure that, evaluate it on the test set."""

import io
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.acceleration.search import searching
from mpx.deploy.backends import REFUSED, Served, backends, out_of_memory, reason_of
from mpx.deploy.build import Trained, cast, in_format, mode_of, trained
from mpx.deploy.choose import Announce, choose, free
from mpx.deploy.measure import TestSet, latency, relative_error, throughput
from mpx.errors import UserError
from mpx.measure.environment import environment
from mpx.measure.exclusive import ExclusivityChecks, cpu_busy
from mpx.measure.memory import GIB, peak_memory, reset_peak
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import float32_matmuls


def serve(
    folder: Path, record: dict[str, Any], device: torch.device, announce: Announce,
    *, format: str, weights: str, backend: str, batch: list[int], target: str | None,
) -> dict[str, Any]:  # fmt: skip
    """A row of deploy.json for the run in `folder`, whose record this is. announce: is told what is being measured.

    Raises UserError for a wish that this run or device cannot meet.
    """
    mode, wanted, sizes = mode_of(format, device), backends(backend, device), sorted(set(batch))
    found = trained(folder, record, target)
    checks, busy = ExclusivityChecks(device), cpu_busy()
    test = TestSet(found.data, record["config"]["data"], device)
    try:
        with torch.no_grad(), searching():
            references = _references(found, test, sizes, device)
            checks.look()  # this process is on the device now
            with float32_matmuls(mode, emulate=False):
                dense = in_format(found, mode, device)
                choice = choose(dense, cast(test.batch(sizes[-1]), mode), format, weights, wanted, announce)
                del dense  # its weights do not count as memory where 2:4 ones are served
                served = _measured(choice.model, choice.backend, mode, test, references, announce)
                alone, reason = checks.verdict()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise UserError(f"batch={sizes}: {sizes[-1]} samples at once need more memory than the device has. Use less.") from error
    finally:
        test.close()
    return {
        "format": format,
        "weights": weights,
        "backend": choice.backend,
        **served,
        "weights_gib": _saved(choice.model) / GIB,
        "sparse_layers": list(choice.sparse),
        "layers": [asdict(layer) for layer in choice.layers],
        "refused": choice.refused,
        "exclusive": alone,
        "exclusive_reason": reason,
        "cpu_busy": busy,
        "device": device.type,
        "environment": environment(),
    }


def _references(found: Trained, test: TestSet, sizes: list[int], device: torch.device) -> dict[int, Tensor]:
    """What the model computes in FP32 for the batch of each size, on the CPU."""
    with float32_matmuls(MODES["fp32"], emulate=False):
        model = in_format(found, MODES["fp32"], device)
        return {size: model(test.batch(size)).cpu() for size in sizes}


def _measured(
    model: nn.Module, backend: str, mode: Mode, test: TestSet, references: dict[int, Tensor], announce: Announce
) -> dict[str, Any]:
    """Speed at each batch size, from small to large; memory; and by what then serves the largest, the metrics of the test set."""
    reset_peak(test.device)
    speed: list[dict[str, Any]] = []
    for size, reference in references.items():
        served = None  # and with it the recordings of the size before
        free()
        served, x = Served(model, backend, test.device), cast(test.batch(size), mode)
        announce(f"{backend}, batch {size}")
        try:
            error = relative_error(served(x).cpu(), reference)
        except REFUSED as refused:  # the choice was made at the largest size
            raise UserError(f"batch={size} is not possible by backend={backend}: {reason_of(refused)}. Leave that size out.") from refused
        speed.append({"batch": size, "serve_samples_per_s": throughput(served, x), **latency(served, x), "relative_error": error})
    announce(f"{backend}, accuracy on the test set")
    try:
        metrics = test.evaluate(lambda x: served(cast(x, mode)), size)
    except REFUSED as refused:  # the last batch of the test set is smaller
        raise UserError(
            f"batch={size}: the last batch of the test set is smaller, which is not possible by backend={backend}: {reason_of(refused)}. "
            "Use another backend=, or a largest batch that divides the test set."
        ) from refused
    return {
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "serve_samples_per_s": speed[-1]["serve_samples_per_s"],
        "speed": speed,
        "memory": peak_memory(test.device),
    }


def _saved(model: nn.Module) -> int:
    """Bytes of a file of its weights."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()
