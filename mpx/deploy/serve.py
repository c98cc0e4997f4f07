"""Serve one run in one format: choose how to call its model, measure its speed, evaluate it on the test set.

For the largest batch, every way is measured: each plan, which says which kernel replaces which layer, by each
backend. The fastest serves that batch and the whole test set. A smaller batch chooses among the ways that
were possible there and multiply 8 bits in the same layers, so the accuracy of the largest holds for it, too.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha

from mpx.acceleration.apply import searching
from mpx.deploy import algorithms, onnx
from mpx.deploy.backends import (
    Call,
    Served,
    backends,
    gpu_is_lost,
    latency,
    reason_of,
    relative_error,
    throughput,
)
from mpx.deploy.build import Samples, Trained, cast, in_format, mode_of, of_run, own, refuse_changing
from mpx.deploy.choose import UNFIT, Announce, Way, choose, differs_from, free, impossible, plans, unfit
from mpx.deploy.export import File, check_packages, graph, program, two_of, weights_file
from mpx.deploy.kernels import MAX_EPSILONS, Kernel, Layer, layers, with_kernels
from mpx.deploy.onnx import OnnxModel
from mpx.deploy.prepare import folded, ranges
from mpx.errors import UserError, one_line
from mpx.measure.environment import environment
from mpx.measure.exclusive import ExclusivityChecks, cpu_busy
from mpx.measure.memory import out_of_memory, peak_memory, reset_peak
from mpx.precision.formats import FORMATS
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import float32_matmuls
from mpx.runs.folder import LAST
from mpx.settings.deploy import QUANTISED, listed
from mpx.system.machine import GIB, memory_bytes
from mpx.training.tasks import primary_metric

CPU = torch.device("cpu")
CALIBRATING = 512  # samples of the validation set, from which the ranges of 8 bits come
# allowed error of a smaller batch, as a multiple of the largest one's; a batch of one varies more
MAX_TIMES = 10


@dataclass(frozen=True)
class Serving:
    """A trained model and all that makes it servable in one format.

    trained: with folded norms. ranges: of its layers' inputs, for 8 bits on a GPU. references: its outputs in
    FP32 on the CPU, by batch size. onnx_model: makes ONNX Runtime's model once.
    """

    fmt: str
    mode: Mode
    device: torch.device
    trained: Trained
    ranges: dict[str, float]
    references: dict[int, Tensor]
    onnx_model: Callable[[], OnnxModel]

    def model(self) -> nn.Module:
        return in_format(self.trained, self.mode, self.device)

    def call(self, way: Way) -> Call:
        if way.backend == "onnx":
            return self.onnx_model()
        return Served(with_kernels(self.model(), way.kernels, self.ranges), way.backend, self.device)


def serve(
    folder: Path, record: dict[str, Any], device: torch.device, announce: Announce, *, format: str,
    weights: str, backend: str,
    batch: int | list[int], export: str | list[str], target: str | list[str] | None, ckpt: str | None,
) -> tuple[dict[str, Any], dict[str, File]]:  # fmt: skip
    """(a row of deploy.json for the run in `folder`, or for the weights in the file `ckpt`; the files to
    export, by kind).

    announce: called with the name of what is measured next. Raises UserError for settings that this run or
    device lacks.
    """
    mode, wanted, kinds = mode_of(format, device), backends(backend, format, device), listed(export)
    check_packages(kinds)
    if weights == "2of4" and device.type == "cpu":
        raise UserError("weights=2of4: 2:4 kernels need a CUDA device. Use weights=auto or dense.")
    config, sizes = record["config"], sorted(listed(batch), reverse=True)
    given = of_run(folder, config, target) if ckpt is None else own(ckpt, config)
    too_large = UserError(f"batch={sizes[0]} needs more memory than there is. Lower batch=.")
    # Linux would kill the process
    if sizes[0] * 4 * math.prod(given.data.spec.shape) > (memory_bytes() or math.inf):
        raise too_large
    with open(folder / LAST if ckpt is None else ckpt, "rb") as file:
        row: dict[str, Any] = {"format": format, "weights": weights, "checkpoint_sha256": _sha256(file)}
    checks, busy = ExclusivityChecks(device), cpu_busy()
    try:
        with torch.no_grad(), searching(), warnings.catch_warnings(), ExitStack() as opened:
            # PyTorch does not join BF16 weights.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            data = given.data
            test, val = (
                opened.enter_context(Samples(part, data.spec, config["data"], device))
                for part in (data.test, data.val)
            )
            opened.callback(algorithms.stop)
            # The fast path of nn.TransformerEncoderLayer reads weights that a product lacks.
            opened.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
            mha.set_fastpath_enabled(False)
            refuse_changing(given.model, test.batch(2).cpu())
            serving = _prepared(given, format, mode, test, val, sizes)
            checks.look()  # this process is on the device now
            with float32_matmuls(mode, emulate=False):
                files = _programs(kinds, serving, test)
                ways, table = _ways(serving, weights, wanted, cast(test.batch(sizes[0]), mode), announce)
                chosen, measured = _measured(serving, ways, test, announce)
                # in a container NVML shows the host's process ids: its child would count as another process
                algorithms.stop()
                alone, reason = checks.verdict()
                if "safetensors" in kinds:
                    files["safetensors"] = _weights(given, serving, chosen, config)
    except RuntimeError as error:
        if gpu_is_lost():
            raise gpu_lost(error, weights) from error
        if out_of_memory(error):
            raise too_large from error
        raise
    where = {"exclusive": alone, "exclusive_reason": reason, "cpu_busy": busy, "device": device.type}
    return row | measured | {"layers": [layer.record(chosen.kernels) for layer in table]} | where | {
        "environment": environment()
    }, files


def _sha256(file: Any) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _prepared(given: Trained, fmt: str, mode: Mode, test: Samples, val: Samples, sizes: list[int]) -> Serving:
    device, image = test.device, given.data.spec.kind == "image"
    x = test.batch(2).cpu()
    trained = Trained(folded(given.model, x), given.data) if image else given
    with float32_matmuls(MODES["fp32"], emulate=False):
        plain = in_format(given, MODES["fp32"], device)
        references = {size: plain(test.batch(size)).cpu() for size in sizes}

    def calibrating() -> Iterator[Tensor]:
        size = min(sizes[0], CALIBRATING)
        return (x for x, _ in islice(val.batches(size), math.ceil(CALIBRATING / size)))

    @cache
    def onnx_model() -> OnnxModel:
        content = onnx.exported(trained.model, two_of(x))
        if fmt == "int8":
            content = onnx.quantised(content, lambda: (x.cpu() for x in calibrating()), static=image)
        return OnnxModel(content)

    largest: dict[str, float] = {}
    if fmt in QUANTISED and device.type == "cuda":
        with float32_matmuls(mode, emulate=False):
            inputs = lambda: (cast(x, mode) for x in calibrating())  # noqa: E731
            largest = ranges(in_format(trained, mode, device), inputs, fmt)
    return Serving(fmt, mode, device, trained, largest, references, onnx_model)


def _programs(kinds: list[str], serving: Serving, test: Samples) -> dict[str, File]:
    """The wanted files that compute (pt2, onnx), checked. Raises UserError if the model cannot be exported
    so.
    """
    files: dict[str, File] = {}
    size, largest = min(serving.references), max(serving.references)
    if "pt2" in kinds:
        x = cast(test.batch(size).cpu(), serving.mode)
        files["pt2"] = program(in_format(serving.trained, serving.mode, CPU), x, serving.references[size])
    if "onnx" in kinds:
        try:
            model = serving.onnx_model()
            metrics = finite(test.evaluate(lambda x: model(x.cpu()).to(x.device), largest))
            error = relative_error(model(test.batch(size).cpu()), serving.references[size])
        except RuntimeError as refused:
            raise UserError(
                f"export=onnx is not possible for this model: {reason_of(refused)}. Leave it out."
            ) from refused
        files["onnx"] = graph(model.content, metrics, error)
    return files


def _ways(
    serving: Serving, weights: str, wanted: list[str], x: Tensor, announce: Announce
) -> tuple[list[Way], list[Layer]]:
    """All that are worth measuring, and the times of the layers by which the plans were made. x: of the
    largest batch.
    """
    found: dict[str, dict[str, Kernel]] = {"": {}}
    table: list[Layer] = []
    if x.is_cuda and wanted != ["tensorrt"]:
        announce(f"layers, batch {len(x)}")
        table = layers(serving.model(), x, serving.fmt, sparse=weights != "dense")
        found = plans(table, serving.fmt, weights)
    return [
        Way(plan if len(found) > 1 else "", found[plan], backend) for plan, backend in product(found, wanted)
    ], table


def _measured(
    serving: Serving, ways: list[Way], test: Samples, announce: Announce
) -> tuple[Way, dict[str, Any]]:
    """The way that serves the largest batch, with its accuracy, memory and size; and each batch size's speed
    by its own way.
    """
    row: dict[str, Any] = {}
    speed: list[dict[str, Any]] = []
    allowed = math.inf
    for size in sorted(serving.references, reverse=True):
        x = cast(test.batch(size), serving.mode)
        differs = partial(differs_from, serving.references[size], allowed)
        choice = choose(ways, serving.call, x, differs, announce)
        free()
        announce(f"{choice.way}, speed at batch {size}")
        try:
            call = serving.call(choice.way)
            reset_peak(serving.device)
            out = call(x).cpu()
        except UNFIT as error:
            raise impossible(choice.way, size, unfit(error, choice.way)) from error
        if (reason := differs(out)) is not None:
            raise impossible(choice.way, size, reason)
        error_to_fp32 = relative_error(out, serving.references[size])
        rates = {"batch": size, "serve_samples_per_s": throughput(call, x), **latency(call, x)}
        speed.insert(0, rates | {"relative_error": error_to_fp32} | choice.record())
        if not row:
            announce(f"{choice.way}, accuracy on the test set")
            chosen = choice.way
            row = _judged(serving, chosen, call, test, size) | {"speed": speed}
            row |= choice.record() | {"serve_samples_per_s": rates["serve_samples_per_s"]}
            epsilon = FORMATS[serving.mode.narrowest].epsilon
            allowed = max(MAX_TIMES * (error_to_fp32 or 0), MAX_EPSILONS * epsilon)
            possible = [way for way in ways if str(way) not in choice.refused]
            ways = [way for way in possible if set(way.quantised) == set(chosen.quantised)]
        del call  # frees its recordings
    return chosen, row


def _judged(serving: Serving, way: Way, call: Call, test: Samples, size: int) -> dict[str, Any]:
    name, goal = primary_metric(test.spec)
    metrics = finite(test.evaluate(lambda x: call(cast(x, serving.mode)), size))
    if isinstance(call, Served):
        weights, quantised = size_of(call.model), way.quantised
    else:
        content = serving.onnx_model().content
        weights, quantised = len(content), onnx.quantised_nodes(content)
    return {
        "metrics": metrics,
        "metric": {"name": f"test/{name}", "goal": goal},
        "test_samples": len(test),
        "weights_gib": weights / GIB,
        "quantised_layers": quantised,
        "memory": peak_memory(serving.device),
    }


def size_of(model: nn.Module) -> int:
    """The bytes of the weights, tied ones once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}.values())


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics as JSON can hold them: None in place of infinities and NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _weights(given: Trained, serving: Serving, way: Way, config: dict[str, Any]) -> File:
    """The served weights if they have 8 bits; otherwise the trained ones in the format, by the names of the
    trained model.
    """
    if serving.fmt not in QUANTISED:
        return weights_file(in_format(given, serving.mode, CPU), serving.fmt, {}, config)
    model = in_format(serving.trained, serving.mode, CPU)
    in_8_bits: dict[str, float | None] = {name: serving.ranges.get(name, 1.0) for name in way.quantised}
    if way.backend == "onnx":
        in_8_bits = {
            name: None for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
        }
    return weights_file(model, serving.fmt, in_8_bits, config)


def gpu_lost(error: RuntimeError, weights: str) -> UserError:
    less = (
        "; weights=dense leaves out the kernels of cuSPARSELt"
        if weights != "dense" and algorithms.used()
        else ""
    )
    said = f"a library's kernel failed ({one_line(error)}), and this process cannot use the GPU any more"
    return UserError(f"the GPU: {said}. Start the command again{less}.")
