"""Scaled dot-product attention in a 16-bit format, rounded where the fused GPU kernels round.

These kernels keep scores and softmax in FP32. They round only what enters a product: queries, keys, values,
probabilities, and in the backward pass the gradients of the scores. Source: Dao, FlashAttention-2,
arXiv:2307.08691; cuDNN's attention does the same.
"""

import math
from typing import Any

import torch
from torch import Tensor

from mpx.precision.formats import ROUND
from mpx.precision.ops import part_of


class FlashAttention(torch.autograd.Function):
    """q [..., Tq, D], k and v [..., Tk, D], bias and keep broadcastable to [..., Tq, Tk] -> [..., Tq, D]. All
    tensors are FP32.

    bias: added to the scores, -inf where masked. keep: dropout's mask divided by the share that is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        fmt: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        keep: Tensor | None,
        scale: float,
    ) -> Tensor:
        rounded = ROUND[fmt]
        q, k, v = rounded(q), rounded(k), rounded(v)
        with part_of("attention", fmt):
            scores = q @ k.transpose(-1, -2) * scale
            scores = scores if bias is None else scores + bias
            # finite where all keys are masked
            largest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)
            weights = (scores - largest).exp_()  # [..., Tq, Tk]
            total = weights.sum(-1, keepdim=True)
            total = total.masked_fill_(total == 0, 1.0)
            out = rounded((rounded(weights if keep is None else weights * keep) @ v) / total)
        ctx.save_for_backward(q, k, v, weights.div_(total), keep, out)
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.fmt, ctx.scale = fmt, scale
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor):
        q, k, v, weights, keep, out = ctx.saved_tensors
        rounded = ROUND[ctx.fmt]
        d_out = rounded(d_out)
        with part_of("attention", ctx.fmt):
            dv = rounded(rounded(weights if keep is None else weights * keep).transpose(-1, -2) @ d_out)
            d_weights = d_out @ v.transpose(-1, -2)
            d_weights = d_weights if keep is None else d_weights.mul_(keep)
            exact = weights * d_weights.sub_((d_out * out).sum(-1, keepdim=True))
            d_scores = rounded(exact)
            dq = rounded(d_scores @ k * ctx.scale)
            dk = rounded(d_scores.transpose(-1, -2) @ q * ctx.scale)
        d_bias = exact.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[4] else None
        return None, dq, dk, dv, d_bias, None, None


def attention(
    fmt: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, computed in `fmt`. The result has the query's dtype,
    or autocast's.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: with is_causal=True, attn_mask must be None, as "
            "PyTorch's own has it"
        )
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    shape = (*query.shape[:-1], key.shape[-2])  # the scores'
    bias = _bias(attn_mask, is_causal, shape, query.device)
    keep = None
    if dropout_p > 0:
        keep = torch.nn.functional.dropout(
            torch.ones(shape, dtype=torch.float32, device=query.device), dropout_p
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    with torch.autocast(kind, enabled=False):  # autocast would round the scores
        return FlashAttention.apply(fmt, query.float(), key.float(), value.float(), bias, keep, scale).to(
            dtype
        )


def _bias(mask: Tensor | None, causal: bool, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    if causal:
        mask = torch.ones(shape[-2:], dtype=torch.bool, device=device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask if mask is None else mask.float()
    return torch.zeros((), dtype=torch.float32, device=device).masked_fill(~mask, float("-inf"))
