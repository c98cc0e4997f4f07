"""Linear layers in FP8, several recipes, in plain operations around torch._scaled_mm."""

import torch
from torch import Tensor

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
TOP = {E4M3: 448.0, E5M2: 57344.0}


def row(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """E4M3 numbers and their inverse scale; powers of two: the largest of a row lands in [128, 256)."""
    largest = x.abs().amax(dim, keepdim=True).float()
    exponent = (largest.view(torch.int32) >> 23) & 255
    exponent = torch.where(exponent < 20, 20, exponent)
    scale = ((261 - exponent) << 23).view(torch.float32)
    inverse = ((exponent - 7) << 23).view(torch.float32)
    inverse = torch.where(exponent == 255, torch.nan, inverse)
    return (x.float() * scale).to(E4M3), inverse


def tensor(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax().float()
    scale = TOP[dtype] / largest.clamp(min=1e-30)
    return (x.float() * scale).clamp(-TOP[dtype], TOP[dtype]).to(dtype), scale.reciprocal()


def mm(a, b, sa, sb, bias=None, fast=True):
    return torch._scaled_mm(a, b, scale_a=sa, scale_b=sb, bias=bias, out_dtype=BF16, use_fast_accum=fast)


class GwHp(torch.autograd.Function):
    """Rowwise, weight gradient in BF16. how: kernel (rowwise kernel), post (per-tensor kernel, scales afterwards)."""

    @staticmethod
    def forward(ctx, x, weight, bias, how, fast):
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.fast = how, fast
        x8, sx = row(x)
        w8, sw = row(weight)
        if how == "kernel":
            return mm(x8, w8.t(), sx, sw.t(), bias.to(BF16))
        one = torch.ones((), device=x.device)
        return (mm(x8, w8.t(), one, one).float() * (sx * sw.t()) + bias).to(BF16)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        g8, sg = row(g)
        w8, sw = row(weight.t())  # [K, N]: scaled along N
        w8 = w8.contiguous()
        if ctx.how == "kernel":
            dx = mm(g8, w8.t(), sg, sw.t(), fast=ctx.fast)
        else:
            one = torch.ones((), device=x.device)
            dx = (mm(g8, w8.t(), one, one, fast=ctx.fast).float() * (sg * sw.t())).to(BF16)
        return dx, (g.t() @ x).float(), g.sum(0, dtype=torch.float32), None, None


class Tensorwise(torch.autograd.Function):
    """One scale a tensor. gw: whether the weight gradient is FP8 too."""

    @staticmethod
    def forward(ctx, x, weight, bias, gw, early):
        x8, sx = tensor(x, E4M3)
        w8, sw = tensor(weight, E4M3)
        ctx.gw, ctx.early = gw, early
        ctx.save_for_backward(x8.t().contiguous() if gw and early else x, weight, sx)
        return mm(x8, w8.t(), sx, sw, bias.to(BF16))

    @staticmethod
    def backward(ctx, g):
        x, weight, sx = ctx.saved_tensors
        g8, sg = tensor(g, E5M2 if ctx.gw else E4M3)
        w8, sw = tensor(weight, E4M3)
        dx = mm(g8, w8.t().contiguous().t(), sg, sw, fast=False)
        if ctx.gw:
            if not ctx.early:
                x8, sx = tensor(x, E4M3)
                x = x8.t().contiguous()
            dw = mm(g8.t().contiguous(), x.t(), sg, sx, fast=False)
        else:
            dw = g.t() @ x
        return dx, dw.float(), g.sum(0, dtype=torch.float32), None, None


class Rowwise(torch.autograd.Function):
    """Rowwise, all three."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        x8, sx = row(x)
        w8, sw = row(weight)
        return mm(x8, w8.t(), sx, sw.t(), bias.to(BF16))

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        g8, sg = row(g)
        w8, sw = row(weight.t())
        dx = mm(g8, w8.contiguous().t(), sg, sw.t())
        gt8, sgt = row(g.t())
        xt8, sxt = row(x.t())
        dw = mm(gt8.contiguous(), xt8.contiguous().t(), sgt, sxt.t())
        return dx, dw.float(), g.sum(0, dtype=torch.float32)


def made(function, *how):
    def linear(x, weight, bias=None):
        flat = x.reshape(-1, x.shape[-1]).to(BF16)
        with torch.autocast("cuda", enabled=False):
            if bias is None:
                bias = weight.new_zeros(weight.shape[0])
            out = function.apply(flat, weight, bias, *how)
        return out.reshape(*x.shape[:-1], weight.shape[0])

    return linear


PLAIN = torch.nn.functional.linear
RECIPES = {
    "bf16": PLAIN,
    "gw_hp": made(GwHp, "kernel", True),
    "gw_hp_exact": made(GwHp, "kernel", False),
    "gw_hp_post": made(GwHp, "post", True),
    "tensor_gw_hp": made(Tensorwise, False, False),
    "tensor": made(Tensorwise, True, False),
    "tensor_early": made(Tensorwise, True, True),
    "rowwise": made(Rowwise),
}


def chosen(recipe, fits):
    """linear by `recipe` where the weight's shape [N, K] fits."""

    def linear(x, weight, bias=None):
        if x.numel() // x.shape[-1] >= 4096 and fits(*weight.shape):
            return RECIPES[recipe](x, weight, bias)
        return PLAIN(x, weight, bias)

    return linear
