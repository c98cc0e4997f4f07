"""Serve one run in one format: choose how to call its model, measure its speed, evaluate it on the test set.

For the largest batch, every way is measured: each plan, which says which kernel replaces which layer, by each
backend. The fastest serves that batch and the whole test set. A smaller batch chooses among the ways that
were possible there and multiply 8 bits in the same layers, so the accuracy of the largest holds for it, too.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha

from mpx.data import unlabelled
from mpx.data.spec import Spec
from mpx.data.tasks import primary_metric
from mpx.deploy import algorithms, onnx
from mpx.deploy.backends import Served, backends, latency, relative_error, throughput
from mpx.deploy.build import Samples, cast, mode_of, of_run, own
from mpx.deploy.choose import UNFIT, Announce, Way, choose, differs_from, free, impossible, plans, unfit
from mpx.deploy.export import File, check_packages, exports
from mpx.deploy.kernels import MAX_EPSILONS, Kernel, Layer, layers
from mpx.deploy.onnx import OnnxModel
from mpx.deploy.prepare import Serving, prepared
from mpx.errors import UserError
from mpx.measure.environment import environment
from mpx.measure.exclusive import CpuUse, ExclusivityChecks
from mpx.measure.memory import out_of_memory, peak_memory, reset_peak
from mpx.precision.formats import FORMATS
from mpx.precision.switches import float32_matmuls, searching
from mpx.settings.deploy import listed
from mpx.system.machine import GIB
from mpx.system.whole_file import to_text

# allowed error of a smaller batch, as a multiple of the largest one's; a batch of one varies more
MAX_TIMES = 10


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
    asked = None if predict is None else unlabelled(config["data"], given.data, predict)
    checks, predicted = ExclusivityChecks(device), None

    def samples(split: Any) -> Samples:
        made = Samples(split, given.data.spec, config["data"], device)
        opened.callback(made.reader.close)
        return made

    with as_served(sizes[0]), ExitStack() as opened:
        test = samples(given.data.test)
        serving = prepared(given, format, mode, test, samples(given.data.val), sizes)
        checks.look()  # this process is on the device now
        with float32_matmuls(mode, emulate=False):
            ways, table = _ways(serving, weights, wanted, cast(test.batch(sizes[0]), mode), announce)
            chosen, measured = _measured(serving, ways, test, announce)
            # in a container NVML shows the host's process ids: the child that searches for algorithms would
            # count as another process
            algorithms.stop()
            alone, reason = checks.verdict(measured["cpu_used_by_others"])
            if asked is not None:
                names, split = asked
                predicted = answers(names, _outputs(serving, chosen, samples(split), sizes[0]), test.spec)
            files, refused = exports(kinds, serving, chosen, test, config)
    row = {"format": format, "weights": weights} | measured
    row |= {"layers": [layer.record(chosen.kernels) for layer in table]}
    row |= {"exports_refused": refused, "environment": environment()}
    row |= {"exclusive": alone, "exclusive_reason": reason, "device": device.type}
    return row, files, predicted


@contextmanager
def as_served(largest: int) -> Iterator[None]:
    """How PyTorch is set while a model is served. Raises UserError if batches of `largest` samples need more
    memory than there is.
    """
    fastpath = mha.get_fastpath_enabled()
    try:
        with torch.no_grad(), searching(), warnings.catch_warnings():
            # PyTorch does not join BF16 weights.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            # The fast path of nn.TransformerEncoderLayer reads weights that a product lacks.
            mha.set_fastpath_enabled(False)
            yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise UserError(f"batch={largest} needs more memory than there is. Lower batch=.") from error
        raise
    finally:
        mha.set_fastpath_enabled(fastpath)
        algorithms.stop()


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


def _judged(serving: Serving, way: Way, call: Served | OnnxModel, test: Samples, size: int) -> dict[str, Any]:
    name, goal = primary_metric(test.spec)
    metrics = test.evaluate(lambda x: call(cast(x, serving.mode)), size)
    if isinstance(call, OnnxModel):
        weights, quantised = len(call.content), onnx.quantised_nodes(call.content)
    else:
        weights, quantised = size_of(call.model), way.quantised
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


def _outputs(serving: Serving, way: Way, samples: Samples, size: int) -> Tensor:
    call = serving.call(way)
    return torch.cat([call(cast(x, serving.mode)).float().cpu() for x, _ in samples.batches(size)])


def answers(names: Sequence[str], outputs: Tensor, spec: Spec) -> str:
    """names: the path or text of each sample. outputs: the model's, [N, classes]. Classes without a name are
    numbers.
    """
    of = "path" if spec.kind == "image" else "text"
    if spec.task == "regression":
        values = (" ".join(f"{value:.7g}" for value in row) for row in outputs.tolist())
        rows = [{of: name, "value": value} for name, value in zip(names, values, strict=True)]
        return to_text((of, "value"), rows)
    probabilities, places = (part.tolist() for part in outputs.softmax(-1).max(-1))
    classes = spec.names or range(spec.classes)
    rows = [
        {of: name, "class": classes[place], "probability": probability}
        for name, place, probability in zip(names, places, probabilities, strict=True)
    ]
    return to_text((of, "class", "probability"), rows)
