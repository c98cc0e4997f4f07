"""Infer from the name of a CUDA kernel the format of its operands, and whether it uses Tensor Cores.

The names are those of cuBLAS, cuDNN, CUTLASS and PyTorch on an H200 (experiments/audit), and older ones from
the documentation of NVIDIA's DLProf.
"""

import re
from functools import cache

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
