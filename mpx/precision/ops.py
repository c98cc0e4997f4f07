"""The ATen operations that multiply matrices, forward and backward, of which a precision mode decides the
formats; and what an operation is part of: a larger one, or an optimizer's change of the weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from mpx.private.torch_dispatch import TorchDispatchMode

# operation -> (kind, positions of the operands that are multiplied). Other tensors are added, or only shape
# the result.
MULTIPLIED: dict[str, tuple[str, tuple[int, ...]]] = {
    "aten.mm": ("matmul", (0, 1)),
    "aten.addmm": ("matmul", (1, 2)),
    "aten._grouped_mm": ("matmul", (0, 1)),  # of a mixture of experts; autocast leaves it alone
    "aten.mv": ("matmul", (0, 1)),
    "aten.addmv": ("matmul", (1, 2)),
    "aten._scaled_mm": ("linear", (0, 1)),  # FP8; only linear layers have it
    "aten.bmm": ("bmm", (0, 1)),
    "aten.baddbmm": ("bmm", (1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": ("attention", (0, 1, 2, 3)),
    "aten._scaled_dot_product_flash_attention": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_backward": ("attention", (0, 1, 2, 3)),
    "aten._scaled_dot_product_efficient_attention": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_efficient_attention_backward": ("attention", (0, 1, 2, 3)),
    "aten._scaled_dot_product_cudnn_attention": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_cudnn_attention_backward": ("attention", (0, 1, 2, 3)),
    "aten.convolution": ("conv", (0, 1)),
    "aten.convolution_backward": ("conv", (0, 1, 2)),
    "aten._cudnn_rnn": ("rnn", (0, 1)),
    "aten._cudnn_rnn_backward": ("rnn", (0, 1)),
    "aten.mkldnn_rnn_layer": ("rnn", (0, 1, 2, 5)),
    "aten.mkldnn_rnn_layer_backward": ("rnn", (0, 1, 2, 5, 10)),
}


def multiplied(func: Any) -> tuple[str, tuple[int, ...]] | None:
    """(kind, operand positions) of an operation that multiplies matrices, else None."""
    return MULTIPLIED.get(str(func.overloadpacket))


class Replacing(TorchFunctionMode):
    """Under this mode, torch.nn.functional.<name> is `function`."""

    def __init__(self, name: str, function: Any):
        super().__init__()
        self.name, self.plain, self.function = name, getattr(functional, name), function

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.multi_head_attention_forward:
            return (self.function if func is self.plain else func)(*args, **kwargs)
        # it calls the function by this name, where modes see no calls
        setattr(functional, self.name, self.function)
        try:
            return func(*args, **kwargs)
        finally:
            setattr(functional, self.name, self.plain)


_part_of: list[tuple[str, str]] = []  # global, because a backward pass may run in another thread


@contextmanager
def part_of(kind: str, fmt: str) -> Iterator[None]:
    """Operations inside are steps of one larger operation (an LSTM, an attention, an FP8 layer) that rounds
    to `fmt` itself.

    They are not rounded again, and count as `kind` in `fmt`.
    """
    _part_of.append((kind, fmt))
    try:
        yield
    finally:
        _part_of.pop()


def inside() -> tuple[str, str] | None:
    """(kind, format) of the larger operation that is being computed, else None."""
    return _part_of[-1] if _part_of else None


def with_closure(
    args: tuple, kwargs: dict[str, Any], wrapped: Callable[[Callable], Callable]
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a hook before an optimizer's step (the optimizer, closure, …), with a wrapped
    closure.
    """
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": wrapped(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrapped(args[1]), *args[2:]), kwargs
    return args, kwargs


class KnowsUpdates(TorchDispatchMode):
    """A mode that knows whether some optimizer computes its change of the weights: in its step, outside the
    step's closure (`updating`).

    That is no arithmetic of the model. Muon multiplies matrices in BF16 there, whatever the format of the
    model.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = 0  # within each other, as that of an optimizer around another one
        self._hooks: list[Any] = []

    @property
    def updating(self) -> bool:
        return self._steps > 0

    def __enter__(self) -> Self:
        self._hooks += [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for _ in range(2):
            self._hooks.pop().remove()

    def _begin(
        self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        self._steps += 1
        return with_closure(args, kwargs, self._outside)

    def _end(self, *step: Any) -> None:
        self._steps -= 1

    def _outside(self, closure: Callable) -> Callable:
        def compute(*args: Any, **kwargs: Any) -> Any:
            steps, self._steps = self._steps, 0
            try:
                return closure(*args, **kwargs)
            finally:
                self._steps = steps

        return compute
