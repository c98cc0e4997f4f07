"""Which ATen operations multiply matrices: the ones that a precision mode is about, forward and backward."""

import torch

aten = torch.ops.aten

# operation -> kind and the positions of the operands that are multiplied; other tensors are added or only shape the result
MULTIPLIED: dict[str, tuple[str, tuple[int, ...]]] = {
    "aten.mm": ("matmul", (0, 1)),
    "aten.addmm": ("matmul", (1, 2)),
    "aten.bmm": ("matmul", (0, 1)),
    "aten.baddbmm": ("matmul", (1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("matmul", (0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": ("matmul", (0, 1, 2, 3)),
    "aten._scaled_dot_product_flash_attention": ("matmul", (0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_backward": ("matmul", (0, 1, 2, 3)),
    "aten._scaled_dot_product_efficient_attention": ("matmul", (0, 1, 2)),
    "aten._scaled_dot_product_efficient_attention_backward": ("matmul", (0, 1, 2, 3)),
    "aten._scaled_dot_product_cudnn_attention": ("matmul", (0, 1, 2)),
    "aten._scaled_dot_product_cudnn_attention_backward": ("matmul", (0, 1, 2, 3)),
    "aten.convolution": ("conv", (0, 1)),
    "aten.convolution_backward": ("conv", (0, 1, 2)),
    "aten._cudnn_rnn": ("rnn", (0, 1)),
    "aten._cudnn_rnn_backward": ("rnn", (0, 1)),
    "aten.mkldnn_rnn_layer": ("rnn", (0, 1, 2, 5)),
    "aten.mkldnn_rnn_layer_backward": ("rnn", (0, 1, 2, 5, 10)),
}


def multiplied(func: torch._ops.OpOverload) -> tuple[str, tuple[int, ...]] | None:
    """(kind, operand positions) of an operation that multiplies matrices, else None."""
    return MULTIPLIED.get(str(func.overloadpacket))
