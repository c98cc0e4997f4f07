"""Serve one run in one format: build the model, choose how to serve it, measure its speed, evaluate it on the test set."""

import hashlib
import math
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.acceleration.apply import searching
from mpx.deploy import algorithms, calibrate, onnx
from mpx.deploy.attention import layer_by_layer
from mpx.deploy.backends import Callers, backends, gpu_is_lost
from mpx.deploy.build import Trained, cast, in_format, mode_of, own, refuse_changing, trained
from mpx.deploy.choose import UNFIT, Announce, Choice, choose, free, impossible, unfit
from mpx.deploy.export import File, check_packages, programs, weights_file
from mpx.deploy.finetune import tuning_of
from mpx.deploy.hooks import forward_hooks
from mpx.deploy.kernel_times import MAX_EPSILONS, OWN_KERNEL, with_kernels
from mpx.deploy.measure import Call, Samples, finite, latency, relative_error, throughput
from mpx.deploy.prepare import Prepared, prepare
from mpx.deploy.recurrent import apart
from mpx.errors import UserError, one_line
from mpx.machine import GIB, memory_bytes
from mpx.measure.environment import environment
from mpx.measure.exclusive import ExclusivityChecks, cpu_busy
from mpx.measure.memory import out_of_memory, peak_memory, reset_peak
from mpx.precision.formats import FORMATS
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import float32_matmuls
from mpx.private.torch_dispatch import tree_leaves
from mpx.private.torch_modules import BATCH_NORM
from mpx.runs.folder import LAST
from mpx.settings.deploy import QUANTISED, listed
from mpx.training.tasks import primary_metric

CPU = torch.device("cpu")
MAX_TIMES = 10  # allowed error of a batch, as a multiple of the largest batch's, whose accuracy is measured; a batch of one varies more


def serve(
    folder: Path, record: dict[str, Any], device: torch.device, announce: Announce,
    *, format: str, weights: str, backend: str, batch: int | list[int], export: str | list[str], finetune: dict[str, float],
    target: str | list[str] | None, ckpt: str | None,
) -> tuple[dict[str, Any], dict[str, File]]:  # fmt: skip
    """(a row of deploy.json for the run in `folder` with this record, or for the weights in the file `ckpt`; the files to export, by kind).

    announce: called with the name of what is measured next. Raises UserError for settings that this run or device does not support.
    """
    mode, wanted, kinds = possible(format, backend, export, device)
    sizes = sorted(listed(batch))
    tuning = tuning_of(record["config"], **finetune) if finetune["epochs"] and format in QUANTISED else None
    as_trained = trained(folder, record, target) if ckpt is None else own(ckpt, record["config"])
    if sizes[-1] * 4 * math.prod(as_trained.data.spec.shape) > (memory_bytes() or math.inf):  # Linux would kill the process
        raise _too_large(sizes)
    digest = _sha256(folder / LAST if ckpt is None else ckpt)
    checks, busy = ExclusivityChecks(device), cpu_busy()
    try:
        with torch.no_grad(), searching(), warnings.catch_warnings(), ExitStack() as opened:
            # PyTorch does not join BF16 weights.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            data, settings = as_trained.data, record["config"]["data"]
            test, val = (opened.enter_context(Samples(split, data.spec, settings, device)) for split in (data.test, data.val))
            if device.type == "cpu" and _held(as_trained.model, test, sizes[-1]) > (memory_bytes() or math.inf):
                raise _too_large(sizes)
            refuse_changing(as_trained.model, test.batch(2).cpu())
            opened.callback(algorithms.stop)
            if device.type == "cuda":
                opened.enter_context(layer_by_layer())
            calibration = partial(calibrate.inputs, val, sizes[-1])
            prepared = prepare(as_trained, mode, format, tuning, test, val, partial(calibration, mode, device), sizes)
            checks.look()  # this process is on the device now
            with float32_matmuls(mode, emulate=False):
                callers = Callers(format, device, data.spec.kind, partial(calibration, MODES["fp32"], CPU))
                files = programs(kinds, prepared.found, mode, callers, test, prepared.references, announce)
                choice, measured = _measured(prepared, mode, format, weights, wanted, callers, test, announce)
                algorithms.stop()  # in a container NVML shows the host's process ids, and its child would count as another process
                alone, reason = checks.verdict()
                if "safetensors" in kinds:
                    files["safetensors"] = _weights(as_trained, prepared, choice, format, mode, record)
    except RuntimeError as error:
        if gpu_is_lost():
            raise gpu_lost(error, weights) from error
        if not out_of_memory(error):
            raise
        raise _too_large(sizes) from error
    asked = {"format": format, "weights": weights, "backend": choice.backend}
    where = {"exclusive": alone, "exclusive_reason": reason, "cpu_busy": busy, "device": device.type, "environment": environment()}
    if norms := _without_statistics(as_trained.model):
        asked["depends_on_batch"] = norms
    return asked | measured | {"checkpoint_sha256": digest, "finetune": prepared.tuned} | where, files


def possible(fmt: str, backend: str, export: str | list[str], device: torch.device) -> tuple[Mode, list[str], list[str]]:
    """(the mode, the backends to measure, the kinds of files). Raises UserError for what `device` or this machine lacks."""
    mode, wanted, kinds = mode_of(fmt, device), backends(backend, fmt, device), listed(export)
    check_packages(kinds)
    return mode, wanted, kinds


def _sha256(path: Path | str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_statistics(model: nn.Module) -> list[str]:
    """The batch norms that normalise each batch by itself, so that a sample's result depends on the others."""
    return [name for name, layer in model.named_modules() if isinstance(layer, BATCH_NORM) and layer.running_mean is None]


def _too_large(sizes: list[int]) -> UserError:
    return UserError(f"batch={sizes}: a batch of {sizes[-1]} needs more memory than there is. Lower batch=.")


def _held(model: nn.Module, test: Samples, size: int) -> float:
    """The bytes of a layer's inputs and outputs in a batch of `size`, of the largest layer: a forward pass needs this much or more."""

    def most(x: Tensor) -> int:
        found = [0]

        def see(_: str, *call: Any) -> None:
            storages = {t.untyped_storage().data_ptr(): t.nbytes for t in tree_leaves(call) if isinstance(t, Tensor)}
            found.append(sum(storages.values()))

        with forward_hooks(model, dict(model.named_modules()), see):
            model(x)
        return max(found)

    return (most(test.batch(4)) - most(test.batch(2))) / 2 * size


def gpu_lost(error: RuntimeError, weights: str) -> UserError:
    less = "; weights=dense leaves out the kernels of cuSPARSELt" if weights != "dense" and algorithms.used() else ""
    said = f"a library's kernel failed ({one_line(error)}), and this process cannot use the GPU any more"
    return UserError(f"the GPU: {said}. Start the command again{less}.")


def _chosen(choice: Choice) -> dict[str, Any]:
    others = "onnx" if choice.backend == "onnx" else OWN_KERNEL
    return {
        "backend": choice.backend,
        "sparse_layers": [name for name, kernel in choice.kernels.items() if kernel.sparse],
        "layers": [layer.record() | {"served": str(choice.kernels.get(layer.name, others))} for layer in choice.layers],
        "candidates": choice.candidates,
        "refused": choice.refused,
    }


def _measured(
    prepared: Prepared, mode: Mode, fmt: str, weights: str, backends: list[str], callers: Callers, test: Samples, announce: Announce
) -> tuple[Choice, dict[str, Any]]:
    """The choice for the largest batch with its accuracy, memory and size; and each batch size's speed by its own choice."""
    largest, row, speed, allowed = None, {}, [], math.inf
    for size in sorted(prepared.references, reverse=True):
        served = model = None  # frees the recordings of the size before
        free()
        dense, x = in_format(prepared.found, mode, test.device), cast(test.batch(size), mode)
        differs = partial(_differs, prepared.references[size], allowed)
        choice = choose(dense, x, fmt, weights, backends, callers, prepared.ranges, announce, prepared.projections, largest, differs)
        announce(f"{choice.backend}, speed at batch {size}")
        try:
            model = with_kernels(dense, choice.kernels, prepared.ranges)
            dense = None  # it must not count as memory if other weights are served
            free()
            reset_peak(test.device)
            served = callers(model, choice.backend)
            error = relative_error(served(x).cpu(), prepared.references[size])
        except UNFIT as refused:
            raise impossible(unfit(refused, choice.kernels), fmt, weights, choice.backend, size if largest else None) from refused
        chosen = _chosen(choice)
        rates = {"batch": size, "serve_samples_per_s": throughput(served, x), **latency(served, x), "relative_error": error}
        speed.insert(0, rates | chosen | {"layers": [layer for layer in chosen["layers"] if layer["ms"]]})
        if largest is None:
            largest = choice
            allowed = math.inf if error is None else max(MAX_TIMES * error, MAX_EPSILONS * FORMATS[mode.narrowest].epsilon)
            announce(f"{choice.backend}, accuracy on the test set")
            row = _judged(served, mode, test, size) | {"serve_samples_per_s": rates["serve_samples_per_s"], "speed": speed}
            row |= {"memory": peak_memory(test.device)} | _size_and_quantised(model, choice, callers) | chosen
    return largest, row


def _differs(reference: Tensor, allowed: float, out: Tensor) -> str | None:
    error = relative_error(out.cpu(), reference)
    if error is None:
        return "its outputs are not finite"
    return f"wrong result: relative error {error:.1e}, more than {allowed:.1e}" if error > allowed else None


def _judged(served: Call, mode: Mode, test: Samples, size: int) -> dict[str, Any]:
    name, goal = primary_metric(test.spec)
    metrics = finite(test.evaluate(lambda x: served(cast(x, mode)), size))
    return {"metrics": metrics, "metric": {"name": f"test/{name}", "goal": goal}, "test_samples": len(test)}


def _size_and_quantised(model: nn.Module, choice: Choice, callers: Callers) -> dict[str, Any]:
    if choice.backend == "onnx":
        content = callers.onnx_model(model).content
        return {"weights_gib": len(content) / GIB, "quantised_layers": onnx.quantised_nodes(content)}
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}  # tied weights count once
    quantised = [name for name, kernel in choice.kernels.items() if kernel.quantised]
    return {"weights_gib": sum(sizes.values()) / GIB, "quantised_layers": quantised}


def _weights(as_trained: Trained, prepared: Prepared, choice: Choice, fmt: str, mode: Mode, record: dict[str, Any]) -> File:
    """The served weights if they have 8 bits; otherwise the trained ones in the format, under the names of the trained model."""
    if fmt not in QUANTISED:
        return weights_file(in_format(as_trained, mode, CPU), fmt, {}, record)
    model = in_format(prepared.found, mode, CPU)
    if choice.backend == "onnx":
        layers = dict.fromkeys(name for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d)))
    else:
        layers = {name: prepared.ranges.get(name, 1.0) for name, kernel in choice.kernels.items() if kernel.quantised}
    return weights_file(apart(model, layers), fmt, layers, record)
