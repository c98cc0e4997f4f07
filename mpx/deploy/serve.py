"""Serve one run in one format: build it, choose how to serve it, measure that, evaluate it on the test set."""

import io
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.acceleration.search import searching
from mpx.deploy import algorithms, calibrate, onnx
from mpx.deploy.backends import REFUSED, Callers, backends, out_of_memory, reason_of
from mpx.deploy.build import Trained, cast, in_format, mode_of, trained
from mpx.deploy.choose import Announce, Choice, choose, free
from mpx.deploy.fold import folded
from mpx.deploy.kernels import QUANTISED
from mpx.deploy.measure import Call, Samples, latency, relative_error, throughput
from mpx.deploy.table import OWN
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
    mode, wanted, sizes = mode_of(format, device), backends(backend, format, device), sorted(set(batch))
    found = trained(folder, record, target)
    checks, busy = ExclusivityChecks(device), cpu_busy()
    try:
        with torch.no_grad(), searching(), ExitStack() as readers:
            kind, data = found.data.spec.kind, record["config"]["data"]
            test, val = (readers.enter_context(Samples(split, kind, data, device)) for split in (found.data.test, found.data.val))
            readers.callback(algorithms.stop)
            references = _references(found, test, sizes, device)
            checks.look()  # this process is on the device now
            if test.kind == "image":
                found = Trained(folded(found.model, test.batch(2).cpu()), found.data)
            with float32_matmuls(mode, emulate=False):
                dense = in_format(found, mode, device)

                def calibration() -> Iterator[Tensor]:
                    return _calibration(val, sizes[-1], mode)

                ranges = calibrate.ranges(dense, calibration, format) if device.type == "cuda" and format in QUANTISED else {}
                callers = Callers(format, device, kind, calibration)
                choice = choose(dense, cast(test.batch(sizes[-1]), mode), format, weights, wanted, callers, ranges, announce)
                del dense  # its weights do not count as memory where others are served
                served = _measured(choice, callers, mode, test, references, announce)
                algorithms.stop()  # a child of this process would count as another one where NVML shows the host's process numbers
                alone, reason = checks.verdict()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise UserError(f"batch={sizes}: {sizes[-1]} samples at once need more memory than the device has. Use less.") from error
    return {
        "format": format,
        "weights": weights,
        "backend": choice.backend,
        **served,
        "sparse_layers": [name for name, kernel in choice.kernels.items() if kernel.sparse],
        **_size_and_quantised(choice, callers),
        "layers": [layer.record() | {"served": str(choice.kernels.get(layer.name, OWN))} for layer in choice.layers],
        "candidates": choice.candidates,
        "refused": choice.refused,
        "exclusive": alone,
        "exclusive_reason": reason,
        "cpu_busy": busy,
        "device": device.type,
        "environment": environment(),
    }


def _references(found: Trained, test: Samples, sizes: list[int], device: torch.device) -> dict[int, Tensor]:
    """What the model computes in FP32 for the batch of each size, on the CPU."""
    with float32_matmuls(MODES["fp32"], emulate=False):
        model = in_format(found, MODES["fp32"], device)
        return {size: model(test.batch(size)).cpu() for size in sizes}


def _calibration(val: Samples, size: int, mode: Mode) -> Iterator[Tensor]:
    """Inputs of the validation set, as the model takes them."""
    size = min(size, calibrate.SAMPLES)
    return (cast(x, mode) for x, _ in islice(val.batches(size), math.ceil(calibrate.SAMPLES / size)))


def _measured(
    choice: Choice, call_by: Callable[[nn.Module, str], Call], mode: Mode, test: Samples, references: dict[int, Tensor], announce: Announce
) -> dict[str, Any]:
    """Speed at each batch size, from small to large; memory; and by what then serves the largest, the metrics of the test set."""
    reset_peak(test.device)
    backend = choice.backend
    speed: list[dict[str, Any]] = []
    for size, reference in references.items():
        served = None  # and with it the recordings of the size before
        free()
        served, x = call_by(choice.model, backend), cast(test.batch(size), mode)
        announce(f"{backend}, batch {size}")
        try:
            error = relative_error(served(x).cpu(), reference)
        except REFUSED as refused:  # the choice was made at the largest size
            raise UserError(f"batch={size} is not possible by backend={backend}: {reason_of(refused)}. Leave that size out.") from refused
        speed.append({"batch": size, "serve_samples_per_s": throughput(served, x), **latency(served, x), "relative_error": error})
    announce(f"{backend}, accuracy on the test set")
    metrics = test.evaluate(lambda x: served(cast(x, mode)), size)
    return {
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "serve_samples_per_s": speed[-1]["serve_samples_per_s"],
        "test_samples": len(test),
        "speed": speed,
        "memory": peak_memory(test.device),
    }


def _size_and_quantised(choice: Choice, callers: Callers) -> dict[str, Any]:
    if choice.backend == "onnx":
        content = callers.onnx(choice.model).content
        return {"weights_gib": len(content) / GIB, "quantised_layers": onnx.quantised_nodes(content)}
    file = io.BytesIO()
    torch.save(choice.model.state_dict(), file)
    return {"weights_gib": file.tell() / GIB, "quantised_layers": [name for name, kernel in choice.kernels.items() if kernel.quantised]}
