"""Each algorithm of cuDNN for a convolution, through its front end: pip install nvidia-cudnn-frontend.

A plan is an engine of cuDNN with settings such as the size of its tiles; its name reads eng62_k2=4_k13=0. All plans that the heuristics
propose are built, checked and timed, on channels_last operands with FP32 sums. For FP32 operands cuDNN also proposes plans that compute in
TF32, with the note TENSOR_CORE: `tf32` has these plans, `fp32` the others.
Source: docs.nvidia.com/deeplearning/cudnn/frontend, "Convolutions" and "Custom Execution Plan".
"""

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mpx.bench.kernels.conv_layers import Layer, Problem, problem
from mpx.bench.kernels.work import Work, one_line, refused, timed
from mpx.measure.timing import elapsed

ALL = "each algorithm"  # in the single row that says why there are no plans
INSTALL = "not measured: pip install nvidia-cudnn-frontend"
TYPES = {"fp32": "FLOAT", "tf32": "FLOAT", "fp16": "HALF", "bf16": "BFLOAT16"}
# direction -> operation of the front end, its operands under the front end's names, and the tensor that has the shape of its result
OPERATIONS = {
    "forward": ("conv_fprop", {"image": "x", "weight": "weight"}, "grad"),
    "input gradient": ("conv_dgrad", {"loss": "grad", "filter": "weight"}, "x"),
    "weight gradient": ("conv_wgrad", {"image": "x", "loss": "grad"}, "weight"),
}
MAX_WORKSPACE = 4 * 2**30  # bytes
MAX_CALL_S = 0.1  # a slower plan, hundreds of times slower than the fastest, is left out, and the reason says so
OF_ANOTHER_FORMAT = "Deselecting execution plan"  # cuDNN's answer for a plan that `of_format` has deselected


def absent(device: torch.device) -> str | None:
    """Why the plans of `device` cannot be measured here, or None where they can."""
    if device.type != "cuda":
        return "no CUDA device"
    try:
        _front_end()
    except ModuleNotFoundError as error:
        return INSTALL if error.name == "cudnn" else f"nvidia-cudnn-frontend does not load: {one_line(error)}"
    except Exception as error:  # its import loads cuDNN's libraries, which fails in many ways
        return f"nvidia-cudnn-frontend does not load: {one_line(error)}"
    return None


def _front_end() -> ModuleType:
    return importlib.import_module("cudnn")  # an optional extra


def none(reason: str) -> dict[str, Any]:
    """The single row of a convolution without plans."""
    return {"algorithm": ALL, "plan": None, "workspace_mib": None} | refused(reason)


def measure(layer: Layer, direction: str, fmt: str, image: int, batch: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """One row per plan, in the order of the heuristics: algorithm, plan, workspace_mib and the columns of RESULT."""
    found = 0
    try:
        given = problem(layer, direction, fmt, "channels_last", image, batch, device)
        with _handle() as handle:
            graph, bound = planned(given, fmt, handle=handle)
            for name, index in plans(graph).items():
                row = _one(graph, index, bound, given, handle, device)
                if OF_ANOTHER_FORMAT not in (row["reason"] or ""):
                    found += 1
                    yield {"algorithm": engine(name), "plan": name} | row
    except RuntimeError as error:
        yield none(one_line(error))
    else:
        if not found:
            yield none(f"cuDNN proposes no algorithm in {fmt}")


@contextmanager
def _handle() -> Iterator[Any]:
    """A handle of cuDNN for PyTorch's current device and stream."""
    cudnn = _front_end()
    handle = cudnn.create_handle()
    try:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        yield handle
    finally:
        cudnn.destroy_handle(handle)


def planned(given: Problem, fmt: str, **where: Any) -> tuple[Any, dict[str, Any]]:
    """(the front end's graph with all proposed plans, its tensors by name: x, weight, grad and out, as far as the graph has them).

    where: handle=, or device_property= of any device. Raises RuntimeError if cuDNN has no plan.
    """
    cudnn = _front_end()
    kind = getattr(cudnn.data_type, TYPES[fmt])
    sums = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=sums, compute_data_type=sums, **where)
    operation, operands, like = OPERATIONS[given.direction]
    bound = {name: graph.tensor(name=name, **_laid_out(getattr(given, name)), data_type=kind) for name in operands.values()}
    steps = {"stride": [given.stride] * 2, "padding": [given.padding] * 2, "dilation": [1, 1]}
    out = getattr(graph, operation)(**{key: bound[name] for key, name in operands.items()}, **steps)
    shape = _laid_out(getattr(given, like))
    out.set_output(True).set_data_type(kind).set_dim(shape["dim"]).set_stride(shape["stride"])
    with _declining():
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
        of_format(graph, fmt)
    return graph, bound | {"out": out}


def of_format(graph: Any, fmt: str) -> None:
    """Deselect the plans of a graph of FP32 tensors that compute in another format than `fmt`."""
    notes = _front_end().numerical_note
    if fmt in ("fp32", "tf32"):
        graph.deselect_numeric_notes([notes.DOWN_CONVERT_INPUTS])
        (graph.select_numeric_notes if fmt == "tf32" else graph.deselect_numeric_notes)([notes.TENSOR_CORE])


def plans(graph: Any) -> dict[str, int]:
    """Name -> index, in the order of the heuristics, which propose many plans twice."""
    found: dict[str, int] = {}
    for index in range(graph.get_execution_plan_count()):
        found.setdefault(graph.get_plan_name_at_index(index), index)
    return found


def engine(plan: str) -> str:
    number = re.search(r"eng(\d+)", plan)
    return f"engine {number[1]}" if number else plan


def _one(graph: Any, index: int, bound: dict[str, Any], given: Problem, handle: Any, device: torch.device) -> dict[str, Any]:
    extra = {"workspace_mib": None}

    def make() -> Work:
        size = build(graph, index)
        extra["workspace_mib"] = size / 2**20
        call = _call(graph, index, bound, given, handle, torch.empty(max(size, 1), dtype=torch.uint8, device=device))
        with _declining():
            call()  # the first one loads kernels
        if (seconds := elapsed(call, device, 1)) > MAX_CALL_S:
            raise RuntimeError(f"one call takes {seconds:.2g} s")
        return Work(call, given.error, given.flops)

    return timed(make, device) | extra


def build(graph: Any, index: int) -> int:
    """Build a plan and return the bytes of its workspace. Raises RuntimeError if this fails, or if they exceed MAX_WORKSPACE."""
    with _declining():
        graph.build_plan_at_index(index)
        size = graph.get_workspace_size_plan_at_index(index)
    if size > MAX_WORKSPACE:
        raise RuntimeError(f"needs {size / 2**20:,.0f} MiB of workspace")
    return size


def _call(graph: Any, index: int, bound: dict[str, Any], given: Problem, handle: Any, workspace: Tensor) -> Callable[[], Tensor]:
    like = getattr(given, OPERATIONS[given.direction][2])
    out = torch.full_like(like, float("nan"))  # a plan that leaves numbers unwritten must not show an earlier result
    tensors = {bound[name]: out if name == "out" else getattr(given, name) for name in bound}

    def call() -> Tensor:
        graph.execute_plan_at_index(tensors, workspace, index, handle=handle)
        return out

    return call


@contextmanager
def _declining() -> Iterator[None]:
    """Raise the front end's refusals as RuntimeErrors, as PyTorch raises its own."""
    cudnn = _front_end()
    try:
        yield
    except (cudnn.cudnnGraphNotSupportedError, ValueError) as error:
        raise RuntimeError(str(error)) from error


def _laid_out(tensor: Tensor) -> dict[str, list[int]]:
    """dim and stride in channels_last. PyTorch's strides of a 1×1 weight may be those of either layout."""
    _, channels, height, width = tensor.shape
    return {"dim": list(tensor.shape), "stride": [channels * height * width, 1, channels * width, channels]}
