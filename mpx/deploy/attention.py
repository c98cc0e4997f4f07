"""Give nn.MultiheadAttention layers for its projections. PyTorch's own multiplies its weights itself, so no kernel could replace them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mpx.deploy.fold import same_outputs
from mpx.deploy.hooks import forward_hooks
from mpx.sparsity.kernels import may_be_self_attention


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """A context in which nn.TransformerEncoderLayer calls its layers. Its fast path would read their weights, which a product lacks."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class SelfAttention(nn.Module):
    """Computes what `plain` does if query, key and value are one input. It returns no attention weights."""

    def __init__(self, plain: nn.MultiheadAttention):
        super().__init__()
        self.heads, self.batch_first = plain.num_heads, plain.batch_first
        self.in_proj = linear_of(plain.in_proj_weight, plain.in_proj_bias)
        self.out_proj = linear_of(plain.out_proj.weight, plain.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, None]:  # fmt: skip
        x = query if self.batch_first else query.transpose(0, 1)  # [B, T, E]
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.in_proj(x).chunk(3, -1)]  # [B, heads, T, size]
        causal = is_causal and key_padding_mask is None  # then attn_mask is the causal one
        mask = None if causal else self._mask(attn_mask, key_padding_mask, x.dtype)
        found = scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=causal)
        found = self.out_proj(found.transpose(1, 2).flatten(2))
        return found if self.batch_first else found.transpose(0, 1), None

    def _mask(self, attention: Tensor | None, padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """attention: [T, T] or [B · heads, T, T]; padding: [B, T]. In both, True or −∞ excludes a key."""
        masks = []
        if attention is not None:
            masks.append(attention if attention.dim() == 2 else attention.unflatten(0, (-1, self.heads)))
        if padding is not None:
            masks.append(padding[:, None, None, :])
        added = [mask.to(dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask.to(dtype) for mask in masks]
        return sum(added) if added else None


@torch.no_grad()
def split(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy whose self-attentions have layers for their projections; `model` itself if it has none, or if the copy computes otherwise.

    model: in evaluation mode, in FP32. x: a batch, to find the self-attentions and to compare the results.
    """
    with layer_by_layer():
        names = _self_attentions(model, x)
        made = copy.deepcopy(model)
        for name in names:
            made.set_submodule(name, SelfAttention(made.get_submodule(name)))
        try:
            return made if names and same_outputs(made, model, x) else model
        except (AttributeError, TypeError):  # the model uses the attention weights
            return model


def linear_of(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """A layer with these parameters themselves."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight, layer.bias = weight, bias
    return layer


def _self_attentions(model: nn.Module, x: Tensor) -> list[str]:
    """Names of the attentions that are always called with one input, a batch of sequences."""
    calls: dict[str, list[bool]] = {}

    def note(name: str, args: tuple, kwargs: dict, out: tuple) -> None:
        query, key, value = (*args, *(kwargs[given] for given in ("query", "key", "value") if given in kwargs))[:3]
        calls.setdefault(name, []).append(query is key and key is value and query.dim() == 3)

    possible = [name for name, layer in model.named_modules() if name and may_be_self_attention(layer)]
    if possible:
        with forward_hooks(model, possible, note):
            model(x)
    return [name for name, alike in calls.items() if all(alike)]
