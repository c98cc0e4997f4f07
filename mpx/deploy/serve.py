"""Serve one run in one format: choose how to call its model, measure its speed, evaluate it on the test set.

For the largest batch, every way is measured: each plan, which says which kernel replaces which layer, by each
backend. The fastest serves that batch and the whole test set. A smaller batch chooses among the ways that
were possible there and multiply 8 bits in the same layers, so the accuracy of the largest holds for it, too.
"""

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
from mpx.data.unlabelled import unlabelled
from mpx.deploy import algorithms, onnx
from mpx.deploy.backends import (
    Call,
    Served,
    backends,
    latency,
    reason_of,
    relative_error,
    throughput,
)
from mpx.deploy.build import Samples, Trained, cast, in_format, mode_of, of_run, own
from mpx.deploy.choose import UNFIT, Announce, Way, choose, differs_from, free, impossible, plans, unfit
from mpx.deploy.export import File, check_packages, program, two_of, weights_file
from mpx.deploy.kernels import MAX_EPSILONS, Kernel, Layer, layers, with_kernels
from mpx.deploy.onnx import OnnxModel
from mpx.deploy.predict import answers
from mpx.deploy.prepare import folded, ranges
from mpx.errors import UserError
from mpx.measure.environment import environment
from mpx.measure.exclusive import CpuUse, ExclusivityChecks
from mpx.measure.memory import out_of_memory, peak_memory, reset_peak
from mpx.precision.formats import FORMATS
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import float32_matmuls
from mpx.settings.deploy import EXPORTS as KINDS
from mpx.settings.deploy import QUANTISED, listed
from mpx.system.machine import GIB
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
    predict: str | None,
) -> tuple[dict[str, Any], dict[str, File], str | None]:  # fmt: skip
    """(a row of deploy.json for the run in `folder`, or for the weights in the file `ckpt`; the files to
    export, by kind; the answers to the samples in `predict`, as CSV).

    announce: called with the name of what is measured next. Raises UserError for settings that this run or
    device lacks.
    """
    mode, wanted, kinds = mode_of(format, device), backends(backend, format, device), listed(export)
    check_packages(kinds)
    if weights == "2of4" and device.type == "cpu":
        raise UserError("weights=2of4: 2:4 kernels need a CUDA device. Use weights=auto or dense.")
    config, sizes = record["config"], sorted(listed(batch), reverse=True)
    given = of_run(folder, config, target) if ckpt is None else own(ckpt, config)
    names, asked = ([], None) if predict is None else unlabelled(config["data"], given.data, predict)
    predicted = None
    row: dict[str, Any] = {"format": format, "weights": weights}
    checks = ExclusivityChecks(device)
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
            serving = _prepared(given, format, mode, test, val, sizes)
            checks.look()  # this process is on the device now
            with float32_matmuls(mode, emulate=False):
                files, refused = _programs(kinds, serving, test)
                ways, table = _ways(serving, weights, wanted, cast(test.batch(sizes[0]), mode), announce)
                chosen, measured = _measured(serving, ways, test, announce)
                # in a container NVML shows the host's process ids: its child would count as another process
                algorithms.stop()
                alone, reason = checks.verdict(measured["cpu_used_by_others"])
                if asked is not None:
                    samples = opened.enter_context(Samples(asked, data.spec, config["data"], device))
                    call = serving.call(chosen)
                    parts = [call(cast(x, mode)).float().cpu() for x, _ in samples.batches(sizes[0])]
                    predicted = answers(names, torch.cat(parts), data.spec)
                if "safetensors" in kinds:
                    files["safetensors"] = _weights(given, serving, chosen, config)
    except RuntimeError as error:
        if out_of_memory(error):
            raise UserError(f"batch={sizes[0]} needs more memory than there is. Lower batch=.") from error
        raise
    row |= measured | {"layers": [layer.record(chosen.kernels) for layer in table]}
    row |= {"exports_refused": refused, "environment": environment()}
    row |= {"exclusive": alone, "exclusive_reason": reason, "device": device.type}
    return row, files, predicted


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


def _programs(kinds: list[str], serving: Serving, test: Samples) -> tuple[dict[str, File], dict[str, str]]:
    """The wanted files that compute (pt2, onnx), checked, and why wanted files of any kind cannot be made."""
    files: dict[str, File] = {}
    refused: dict[str, str] = {}
    makers = {"pt2": _program, "onnx": _graph}
    for kind in kinds:
        if serving.fmt not in KINDS[kind]:
            refused[kind] = f"it can hold {', '.join(KINDS[kind])}, not {serving.fmt}"
        elif kind in makers:
            try:
                files[kind] = makers[kind](serving, test)
            except RuntimeError as error:
                refused[kind] = reason_of(error)
    return files, refused


def _program(serving: Serving, test: Samples) -> File:
    size = min(serving.references)
    x = cast(test.batch(size).cpu(), serving.mode)
    return program(in_format(serving.trained, serving.mode, CPU), x, serving.references[size])


def _graph(serving: Serving, test: Samples) -> File:
    """The ONNX graph, with its metrics and error on the test set by ONNX Runtime."""
    model, size = serving.onnx_model(), min(serving.references)
    metrics = finite(test.evaluate(lambda x: model(x.cpu()).to(x.device), max(serving.references)))
    error = relative_error(model(test.batch(size).cpu()), serving.references[size])
    return File(model.content, {"metrics": metrics, "relative_error": error})


def _ways(
    serving: Serving, weights: str, wanted: list[str], x: Tensor, announce: Announce
) -> tuple[list[Way], list[Layer]]:
    """All that are worth measuring, and the times of the layers by which the plans were made. x: of the
    largest batch.
    """
    by_name: dict[str, dict[str, Kernel]] = {"": {}}
    table: list[Layer] = []
    if x.is_cuda:
        announce(f"layers, batch {len(x)}")
        table = layers(serving.model(), x, serving.fmt, sparse=weights != "dense")
        by_name = plans(table, serving.fmt, weights)
    ways = [
        Way(plan if len(by_name) > 1 else "", by_name[plan], backend)
        for plan, backend in product(by_name, wanted)
    ]
    return ways, table


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
        cpu = CpuUse()
        rates: dict[str, Any] = {"batch": size, "serve_samples_per_s": throughput(call, x)}
        rates |= {**latency(call, x), "cpu_used_by_others": cpu.by_others(), "relative_error": error_to_fp32}
        speed.insert(0, rates | choice.record())
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
    used = [at["cpu_used_by_others"] for at in speed]
    row["cpu_used_by_others"] = None if None in used else max(used)
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
