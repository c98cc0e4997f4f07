"""Record the products of matrices in one training step, each with its operands' formats and its kernels.

The formats are visible as PyTorch dispatches an operation. Only the kernels show whether FP32 operands
multiply in FP32 or TF32, and whether on Tensor Cores; their names tell.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from mpx.precision.formats import STORED
from mpx.precision.modes import Mode
from mpx.precision.ops import inside, multiplied
from mpx.private.torch_dispatch import TorchDispatchMode, tree_leaves

MARK = "mpx.call"
WIDTHS = ("fp8_e5m2", "fp8_e4m3", "int8", "fp16", "bf16", "tf32", "fp32", "fp64")  # from narrow to wide


@dataclass
class Call:
    name: str  # ATen's, without "aten."
    kind: str  # matmul, conv, rnn, bmm or attention
    operands: tuple[torch.dtype, ...]  # of the tensors that are multiplied
    result: torch.dtype | None  # of the first tensor that is returned, or else given
    with_vector: bool  # a product of matrices, of which one has a single row or column
    part_of: tuple[str, str] | None  # (kind, format) of the larger operation that this one is a step of
    flops: int  # floating point operations
    kernels: list[str] = field(default_factory=list)

    def format(self, mode: Mode) -> str | None:
        """The format in which it multiplies, by its operands: that of the widest. None where no Format
        describes them, or none is known.
        """
        if not self.operands or not STORED.keys() >= set(self.operands):
            return None
        if self.part_of is not None:
            return self.part_of[1]
        widest = max((STORED[dtype] for dtype in self.operands), key=WIDTHS.index)
        return "tf32" if widest == "fp32" and mode.formats[self.kind] == "tf32" else widest

    @property
    def kernel_format(self) -> str | None:
        """The format in which it multiplies, by its kernels: the widest. None where they do not tell."""
        return max((fmt for fmt, _ in self._products() if fmt is not None), key=WIDTHS.index, default=None)

    @property
    def tensor_cores(self) -> bool | None:
        """Whether all its products run on Tensor Cores. None where no kernel tells."""
        seen = self._products()
        return all(on_cores for _, on_cores in seen) if seen else None

    @property
    def accumulator(self) -> str:
        """The format in which products are summed."""
        return "fp16" if any(map(sums_in_fp16, self.kernels)) else "fp32"

    def _products(self) -> list[tuple[str | None, bool]]:
        """(format, whether on Tensor Cores) of each kernel that is known to multiply."""
        return [product for name in self.kernels if (product := classify(name)) is not None]


class OperationRecorder(TorchDispatchMode):
    """Enter it around one training step; afterwards `calls` has the products in their order.

    flops_of: (operation, arguments, keyword arguments, result) -> floating point operations. kernels_of: a
    CUDA device whose kernels are recorded with torch.profiler.
    """

    def __init__(self, flops_of: Callable[..., int], *, kernels_of: torch.device | None = None):
        super().__init__()
        self.calls: list[Call] = []
        self._flops_of, self._device = flops_of, kernels_of
        self._profiler: Any = None

    def __enter__(self) -> "OperationRecorder":
        if self._device is not None:
            self._profiler = profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True
            )
            self._profiler.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self._profiler is not None:
            torch.cuda.synchronize(self._device)
            self._profiler.__exit__(*raised)
            self._attribute(self._profiler.events())
            self._profiler = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, product = kwargs or {}, multiplied(func)
        if product is None:
            return func(*args, **kwargs)
        kind, positions = product
        with nullcontext() if self._profiler is None else record_function(f"{MARK}{len(self.calls)}"):
            out = func(*args, **kwargs)
        operands = [args[i] for i in positions if i < len(args) and isinstance(args[i], Tensor)]
        vector = kind in ("matmul", "linear", "bmm") and any(
            1 in operand.shape[-2:] or operand.dim() == 1 for operand in operands
        )
        result = next(
            (
                leaf.dtype
                for leaf in tree_leaves(out if out is not None else args)
                if isinstance(leaf, Tensor)
            ),
            None,
        )
        name = str(func.overloadpacket).removeprefix("aten.")
        dtypes = tuple(operand.dtype for operand in operands)
        flops = self._flops_of(func, args, kwargs, out)
        self.calls.append(Call(name, kind, dtypes, result, vector, inside(), flops))
        return out

    def _attribute(self, events: Iterable[Any]) -> None:
        """Give each call the kernels that ran within its mark."""
        for event in events:
            number = int(event.name.removeprefix(MARK)) if event.name.startswith(MARK) else len(self.calls)
            if number < len(self.calls):  # an operation that failed has a mark and is no call
                self.calls[number].kernels += _kernels_below(event)


def _kernels_below(event: Any) -> list[str]:
    """The kernels of an event and its children. A mark appears on the device's time line too, and is left
    out.
    """
    kernels = [kernel.name for kernel in event.kernels if not kernel.name.startswith(MARK)]
    for child in event.cpu_children:
        kernels += _kernels_below(child)
    return kernels


# The names are those of cuBLAS, cuDNN, CUTLASS and PyTorch on an H200 (experiments/audit), and older ones
# from the documentation of NVIDIA's DLProf.

# a template whose first type is that of its operands
TYPED = r"(dgrad|wgrad|fprop|conv|gemv|gemm|dot)[\w:]*<[^>]*?"
# (pattern, format, Tensor Cores); the first match decides
RULES: tuple[tuple[str, str | None, bool], ...] = (
    (r"e5m2", "fp8_e5m2", True),
    (r"e4m3", "fp8_e4m3", True),
    # cuBLAS: a letter per matrix: q E4M3, r E5M2, h FP16, t BF16, s FP32 storage
    (r"nvjet_(sm\d+_)?(qr|rq)", "fp8_e5m2", True),
    (r"nvjet_(sm\d+_)?q", "fp8_e4m3", True),
    (r"nvjet_(sm\d+_)?h", "fp16", True),
    (r"nvjet_(sm\d+_)?t", "bf16", True),
    (r"nvjet_(sm\d+_)?s", "tf32", True),
    (r"i8i8|_s8_|imma|igemm|i\d+gemm_s8", "int8", True),
    (r"fmha_cutlass[FB]_f32", "fp32", True),  # each FP32 product is made of three in TF32
    (r"cudnn_generated.*sdpa", None, True),  # f16 means FP16 or BF16
    (r"(fmha|flash|sdpa).*(bf16|bfloat16)", "bf16", True),
    (r"(fmha|flash|sdpa).*(f16|half)", "fp16", True),
    (r"(persist|RNN_blockPersist).*HMMA.*bfloat16", "bf16", True),
    (r"(persist|RNN_blockPersist).*(HMMA|__half)", "fp16", True),
    (r"(persist|RNN_blockPersist).*<float", "fp32", False),
    (r"tf32", "tf32", True),
    (r"bf16bf16|bf16_s\d+|tensorop_bf16|bf16gemm|wmma_tensorop_bf16|s\d{4,}\w*_bf16", "bf16", True),
    (
        r"f16f16|fp16_[sh]\d+|h\d{3,}gemm|tensorop_f16|tensorop_h\d+|wmma_tensorop_f16|_[sh]884|hmma|s\d{4,}\w*_f16|f16_s\d{4,}",
        "fp16",
        True,
    ),
    (r"tensorop_s1688|s1688(gemm|fprop|dgrad|wgrad)", "tf32", True),
    (r"ImplicitGemmConvolution.*bfloat16_t", "bf16", True),
    (r"ImplicitGemmConvolution.*half_t", "fp16", True),
    (r"ImplicitGemmConvolution.*(tfloat32|TensorOp.*float)", "tf32", True),
    (TYPED + r"(__nv_bfloat16|BFloat16)", "bf16", False),
    (TYPED + r"(__half|Half)", "fp16", False),
    (r"f32f32_f32f32|simt_s|sgemm|scudnn|ffma|cf32|cgemm|fft|winograd", "fp32", False),
    (TYPED + r"float", "fp32", False),
)
HELPERS = re.compile(  # kernels that multiply no matrices
    r"elementwise|elemWise|memset|memcpy|Memset|Memcpy|nchwToNhwc|nhwcToNchw|convertTensor|scalePackedTensor|splitKreduce|reduce_kernel|"
    r"init_device_workspace|AddPadding|RNN_copy|RNN_init|catArray|unpack_cudnn|compute_dot_do_o|convert_dq|kern_precompute_indices|scal_kernel|epilogue::impl"
)


@cache
def classify(kernel: str) -> tuple[str | None, bool] | None:
    """(format, whether on Tensor Cores); None for a helper or an unknown name. The format is None if the name
    does not show it.
    """
    if HELPERS.search(kernel):
        return None
    return next(((fmt, cores) for pattern, fmt, cores in RULES if re.search(pattern, kernel)), None)


def sums_in_fp16(kernel: str) -> bool:
    """Whether the kernel sums products in FP16, as some kernels for FP16 operands do."""
    return re.search(r"nvjet_(sm\d+_)?hhh|tensorop_h\d{3,}|_h\d{3,}gemm|hgemm", kernel) is not None
