"""Ways to call a model: layer by layer, compiled, replayed from a CUDA graph, by TensorRT, or by ONNX Runtime (onnx.py)."""

import importlib.util
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from mpx.acceleration.compiled import prepare_compiler
from mpx.acceleration.graph import CudaRecorder
from mpx.deploy import onnx
from mpx.deploy.onnx import OnnxModel
from mpx.errors import UserError, one_line
from mpx.machine import builds_kernels
from mpx.measure.memory import out_of_memory, reset_peak
from mpx.private.torch_modules import compiler_errors
from mpx.settings.extras import install

REFUSED = (RuntimeError, *compiler_errors())  # raised by a model that cannot be compiled or recorded
COMPILED = {  # options of torch.compile
    "compile": {},
    "autotune": {
        "options": {
            "max_autotune": True,
            "coordinate_descent_tuning": True,
            "autotune_num_choices_displayed": 0,
            "max_autotune_report_choices_stats": False,
        }
    },
    "tensorrt": {  # without these options, PyTorch computes what TensorRT fails to build, and any five operations in a row or fewer
        "backend": "torch_tensorrt",
        "options": {"pass_through_build_failures": True, "min_block_size": 1, "use_explicit_typing": True},
    },
}
SLOW = ("autotune", "tensorrt")  # they take minutes
ONNX_FORMATS = ("fp32", "int8")
TENSORRT_FORMATS = ("tf32", "fp16", "bf16")  # it multiplies FP32 in TF32
WARMUP = 3  # calls before a recording, to load, compile and choose kernels


def gpu_is_lost() -> bool:
    """Whether a kernel's fault, such as an access to memory that is not its own, has ended CUDA for this process."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def reason_of(error: BaseException) -> str:
    """An error of REFUSED in one line. Raises it again if memory ran out or the GPU is lost, since that says nothing about the backend."""
    if out_of_memory(error) or gpu_is_lost():
        raise error
    return one_line(error)


def backends(requested: str, fmt: str, device: torch.device) -> list[str]:
    """The backends to measure. Raises UserError if this machine lacks the requested one, or lacks it for this format."""
    missing = lacking(fmt, device)
    there = [name for name, reason in missing.items() if reason is None]
    if not there:
        raise UserError(f"format=int8: on a CPU it needs ONNX Runtime ({missing['onnx']}). Install it, or use format=fp32.")
    if requested == "auto":
        return [name for name in there if name not in SLOW]
    if missing[requested] is not None:
        raise UserError(f"backend={requested}: {missing[requested]}. Use backend=auto or {there[0]}.")
    return [requested]


def lacking(fmt: str, device: torch.device) -> dict[str, str | None]:
    """Why this machine lacks each backend for this format; None for one that it has."""
    on_cpu = device.type == "cpu"
    no_compiler = None if builds_kernels(device.type) else "torch.compile finds no compiler with Python's header files here"
    missing = {
        "eager": None,
        **dict.fromkeys(COMPILED, no_compiler),
        "graph": "CUDA graphs need a CUDA device" if on_cpu else None,
        "tensorrt": _no_tensorrt(fmt, on_cpu),
        "onnx": onnx.missing() if on_cpu else "mpx calls ONNX Runtime on CPUs only; use accelerator=cpu",
    }
    if on_cpu and fmt == "int8":
        missing |= dict.fromkeys(("eager", *COMPILED), "on a CPU, INT8 products are ONNX Runtime's")
    if on_cpu and fmt not in ONNX_FORMATS:
        missing["onnx"] = f"format={fmt} is not served by ONNX Runtime, but {' and '.join(ONNX_FORMATS)} are"
    return missing


def _no_tensorrt(fmt: str, on_cpu: bool) -> str | None:
    if on_cpu:
        return "TensorRT needs a CUDA device"
    if fmt not in TENSORRT_FORMATS:
        return f"mpx calls TensorRT in {', '.join(TENSORRT_FORMATS)}, not in {fmt}"
    absent = importlib.util.find_spec("torch_tensorrt") is None
    return f"torch_tensorrt is not installed; {install('tensorrt')} brings it" if absent else None


def _import_tensorrt() -> None:
    """Its import makes torch.compile know TensorRT. Raises RuntimeError if TensorRT's own libraries are not there."""
    with onnx.as_runtime_errors(), onnx.quiet():
        importlib.import_module("torch_tensorrt")


class Callers:
    """Makes the object by which a backend calls a model. kind: that of Spec.

    batches: FP32 inputs on the CPU, to export ONNX graphs and to scale INT8 activations.
    """

    def __init__(self, fmt: str, device: torch.device, kind: str, batches: Callable[[], Iterable[Tensor]]):
        self.fmt, self.device, self.kind, self.batches = fmt, device, kind, batches
        self._onnx: OnnxModel | RuntimeError | None = None

    def __call__(self, model: nn.Module, backend: str) -> Callable[[Tensor], Tensor]:
        return self.onnx_model(model) if backend == "onnx" else Served(model, backend, self.device)

    def onnx_model(self, model: nn.Module) -> OnnxModel:
        """One file for all batch sizes; a model that has none is tried once for all of them, too. model: the same at each call."""
        if self._onnx is None:
            try:
                self._onnx = self._made(model)
            except RuntimeError as error:
                self._onnx = error
        if isinstance(self._onnx, RuntimeError):
            raise self._onnx
        return self._onnx

    def _made(self, model: nn.Module) -> OnnxModel:
        x = next(iter(self.batches()))
        content = onnx.exported(model, x.repeat_interleave(2, dim=0)[:2])  # a single sample would fix the batch size to 1
        if self.fmt == "int8":
            content = onnx.quantised(content, self.batches, static=self.kind == "image")
        return OnnxModel(content)


class Served:
    """Calls `model` by a backend, which prepares itself at the first call with each shape.

    A smaller batch runs in the recording of a larger one; the other samples there are left from an earlier batch.
    A result on CUDA lies in the recording's memory and is valid until the next call.
    """

    def __init__(self, model: nn.Module, backend: str, device: torch.device):
        self.model, self.backend = model, backend
        self.recorded = backend not in ("eager", "tensorrt") and device.type == "cuda"
        self.prepared: set[tuple[int, ...]] = set()  # shapes, if TensorRT serves them
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.call: Callable[[Tensor], Tensor] = model
        if backend in COMPILED:
            prepare_compiler()
            if backend == "tensorrt":
                _import_tensorrt()
            self.call = torch.compile(model, dynamic=False, **COMPILED[backend])

    def __call__(self, x: Tensor) -> Tensor:
        if self.backend == "tensorrt" and x.shape not in self.prepared:
            self.model(x)  # as below
            self.prepared.add(x.shape)
        if not self.recorded:
            return self.call(x)
        count = len(x)
        larger = (shape for shape in self.recordings if shape[0] >= count and shape[1:] == tuple(x.shape[1:]))
        if (shape := min(larger, default=None)) is None:
            self.model(x)  # 2:4 layers search for their algorithms, which is not possible in a compiler or a recording
            shape = tuple(x.shape)
            self.recordings[shape] = Recording(self.call, x)
        return self.recordings[shape](x)[:count]


class Recording:
    """A recorded call on an input of one shape. Each replay copies its input into the recorded one's memory."""

    def __init__(self, call: Callable[[Tensor], Tensor], x: Tensor):
        self.input = x.clone()
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARMUP):
                call(self.input)
        here.wait_stream(aside)
        torch.cuda.empty_cache()
        reset_peak(x.device)  # the calls before search and compile; serving does not need their memory
        found: list[Tensor] = []
        self.graph = CudaRecorder().record(lambda: found.append(call(self.input)))
        (self.output,) = found

    def __call__(self, x: Tensor) -> Tensor:
        self.input[: len(x)].copy_(x)
        self.graph.replay()
        return self.output
