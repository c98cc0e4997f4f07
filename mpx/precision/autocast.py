"""Cast on any device as autocast casts on CUDA. PyTorch's autocast for CPUs has other lists of operations.

Autograd records the casts, so gradients pass through the narrow format where they do on a GPU.
Source of lists and rules: PyTorch, aten/src/ATen/autocast_mode.h and autocast_mode.cpp.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mpx.private.torch_dispatch import autocast_has, tree_map

_LOWER_PRECISION = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
    prelu
    addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention scaled_dot_product_attention
"""
_FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm norm linalg_vector_norm
    linalg_matrix_norm renorm
    cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
    l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist logsumexp softmax log_softmax sum prod cumsum cumprod
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
    upsample_trilinear3d upsample_bicubic2d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa
"""
_PROMOTED = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
TO_16_BITS, TO_FP32, TO_THE_WIDEST = (
    frozenset(names.split()) for names in (_LOWER_PRECISION, _FP32, _PROMOTED)
)
if not autocast_has("aten::rms_norm"):  # PyTorch 2.11 has no rule for it
    TO_FP32 -= {"rms_norm"}
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

# operation of the lists -> its other names in Python, and the operations that consist of it
WITHIN = {
    "matmul": "__matmul__ linalg_matmul matrix_power linalg_matrix_power cov corrcoef",
    "pow": "__pow__ square",
    "acos": "arccos",
    "asin": "arcsin",
    "erfinv": "special_erfinv",
    "expm1": "special_expm1",
    "log1p": "special_log1p",
    "logsumexp": "special_logsumexp",
    "sum": "sum_to_size trapezoid trapz cumulative_trapezoid",
    "softmax": "special_softmax",
    "log_softmax": "special_log_softmax cross_entropy_loss",
    "nll_loss": "nll_loss_nd",
    "linalg_vector_norm": "linalg_norm norm_except_dim pairwise_distance",
    "tensordot": "inner",
}
_LISTED = {name: listed for listed, names in WITHIN.items() for name in names.split()}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Casts:
    """casts(function, args, kwargs) -> the args and kwargs that autocast to `dtype` would pass to a function
    of PyTorch.

    A weight that is used several times is cast each time, as with cache_enabled=False: a step may change it
    in between.
    """

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def __call__(self, function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        name = getattr(function, "__name__", "")
        name = _LISTED.get(name, name)
        if "out" in kwargs:
            return args, kwargs
        if name in TO_16_BITS or name in RECURRENT:
            return tree_map(lambda value: _cast(value, self.dtype), (args, kwargs))
        given = (*args, *kwargs.values())
        if name in TO_FP32 and not any(isinstance(value, torch.dtype) for value in given):
            return _to_fp32(args, kwargs)
        fp32 = (isinstance(value, Tensor) and value.dtype == torch.float32 for value in given)
        if name in TO_THE_WIDEST and any(fp32):
            return _to_fp32(args, kwargs)
        return args, kwargs


def _to_fp32(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Tensors in lists are not cast, because torch.foreach has functions of the same names, which autocast
    does not cast.
    """
    return tuple(_cast(value, torch.float32) for value in args), {
        key: _cast(value, torch.float32) for key, value in kwargs.items()
    }


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype in FLOATS else value


@contextmanager
def announced() -> Iterator[None]:
    """A context in which autocast counts as on. Without it nn.RNNBase refuses an FP16 input with FP32
    weights.

    It switches on the autocast of a device type that no tensor here has, so nothing is cast.
    """
    before = torch.is_autocast_enabled("ipu")
    torch.set_autocast_enabled("ipu", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("ipu", before)
