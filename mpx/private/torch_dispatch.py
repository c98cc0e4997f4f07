"""Private API of PyTorch 2.11 to 2.15: the modes that see each operation, and what an operation says of
itself.

TorchDispatchMode and the functions for trees of tensors are documented, but their modules have private names.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only

__all__ = ["TorchDispatchMode", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only"]

# the innermost active mode; the modes' stack has no public view
dispatch_mode = _get_current_dispatch_mode
# no dispatch mode sees what runs inside; publicly, a mode can only be left by the code that entered it
without_dispatch_modes = _disable_current_modes
aten = torch.ops.aten
# Operators have a leading underscore where no function of PyTorch's Python API is that operator.
TO_COPY = aten._to_copy
CUDNN_RNN, CUDNN_RNN_BACKWARD = aten._cudnn_rnn, aten._cudnn_rnn_backward
# of torch.nn.functional.grouped_mm, by which transformers computes a mixture of experts
GROUPED_MM = aten._grouped_mm
CPU_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
CPU_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward
FUSED_ATTENTION_BACKWARD = (
    CPU_ATTENTION_BACKWARD, aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward, aten._flash_attention_backward,
    aten._efficient_attention_backward,
)  # fmt: skip


@contextmanager
def without_modes() -> Iterator[None]:
    """Neither a dispatch mode nor a function mode sees what runs inside."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def computing_again() -> bool:
    """Whether this is a part of the forward pass that torch.utils.checkpoint computes again within a backward
    pass.

    There it switches gradients on, as only a backward pass with create_graph=True does, too. No public
    function tells them apart.
    """
    return torch.is_grad_enabled() and _in_backward() and _called_from(checkpoint.__file__)


def in_plain_backward() -> bool:
    """Whether this is Python code of a backward pass that computes without autocast: a hook's, or that of a
    torch.autograd.Function.

    What a checkpoint computes again, and what torch.amp.custom_bwd decorates, has the autocast of the forward
    pass.
    """
    return _in_backward() and not _called_from(checkpoint.__file__, torch.amp.autocast_mode.__file__)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _called_from(*files: str) -> bool:
    """Whether a function of one of these files is among the callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename not in files:
        frame = frame.f_back
    return frame is not None


def schema_of(operation: Any) -> Any:
    """The signature of an ATen operation: its name, arguments and returns, and which of them it writes. None
    for any other function.
    """
    return getattr(operation, "_schema", None)


def version(tensor: Tensor) -> int:
    """Autograd's count of the changes of a tensor. Publicly, autograd only raises where a change spoils a
    gradient.
    """
    return tensor._version


def autocast_has(operator: str) -> bool:
    """Whether autocast for CUDA has a rule for an operator, as `aten::rms_norm`. Its lists are not visible
    from Python.
    """
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "AutocastCUDA")


@contextmanager
def every_call_seen() -> Iterator[None]:
    """Function modes see the operations that PyTorch's Python functions call, as autocast does, and not those
    functions.

    A Python function of PyTorch passes itself to the innermost mode, and what it calls runs below that mode:
    a linear layer within multi_head_attention_forward, or what a checkpoint computes again within backward.
    PyTorch offers no other order.
    """
    modules = (torch.nn.functional, torch.functional, torch._tensor, torch.autograd)
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    before = [
        (module, name, getattr(module, name))
        for module in modules
        for name in checks
        if hasattr(module, name)
    ]
    for module, name, _ in before:
        setattr(module, name, lambda *args: False)
    try:
        yield
    finally:
        for module, name, check in before:
            setattr(module, name, check)
