"""How passes compute in a mode: by autocast, by emulation, or with weights in its format."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from mpx.precision.attention import attention
from mpx.precision.emulate import Emulate
from mpx.precision.fp8 import Layers
from mpx.precision.modes import Mode
from mpx.precision.ops import Replacing
from mpx.precision.recurrent import BFloat16RNN, has_rnn
from mpx.precision.switches import AlignedChannels, keep_apart
from mpx.private.torch_dispatch import every_call_seen
from mpx.private.torch_modules import BATCH_NORM, own_flat_weights, reparametrized


class Computing:
    """The contexts of the passes of one model.

    emulate: round to the format and compute in FP32. layers: the linear layers that are in FP8; None: the
    mode has no FP8. new_tensors: the dtype of tensors that the model makes without naming one; None:
    PyTorch's.
    """

    def __init__(
        self,
        mode: Mode,
        device: torch.device,
        model: nn.Module,
        *,
        emulate: bool,
        layers: Layers | None,
        new_tensors: torch.dtype | None,
    ):
        self.mode, self.device, self.model, self.emulate = mode, device, model, emulate
        self.layers, self.new_tensors = layers, new_tensors
        on_gpu = not emulate and device.type == "cuda"
        self.bf16_rnn = on_gpu and mode.autocast == torch.bfloat16 and has_rnn(model)
        # weights of the newest forward pass in the model's format, if the mode keeps FP32 ones
        self._copies: dict[str, Tensor] = {}
        # within `forward`, which holds the whole step where the optimization is manual
        self._emulating = False

    @contextmanager
    def forward(self) -> Iterator[None]:
        mode = self.mode
        with ExitStack() as stack:
            stack.enter_context(default_dtype(self.new_tensors))
            if mode.master:
                self._copies = self._copied()
                if not torch.is_grad_enabled():  # no backward pass needs them
                    stack.callback(setattr, self, "_copies", {})
                stack.enter_context(self._with_copies())
            if self.emulate:
                stack.enter_context(self._emulation())
                self._emulating = True
                stack.callback(setattr, self, "_emulating", False)
            elif mode.autocast is not None:
                keep_apart(autocast=mode.autocast)
                stack.enter_context(
                    torch.autocast(self.device.type, dtype=mode.autocast, cache_enabled=False)
                )
            for replaced in self._replacements():
                stack.enter_context(replaced)
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Activation checkpointing computes parts of the forward pass again here, which must be as they
        were.
        """
        with ExitStack() as stack:
            stack.enter_context(default_dtype(self.new_tensors))
            if self.mode.master:
                stack.enter_context(self._with_copies())
            stack.enter_context(
                self._emulation() if self.emulate and not self._emulating else self._no_autocast()
            )
            if replacements := self._replacements():
                stack.enter_context(every_call_seen())
                for replaced in replacements:
                    stack.enter_context(replaced)
            yield
        self._copies = {}

    def _emulation(self) -> Emulate:
        autocast = self.mode.weights == torch.float32
        return Emulate(self.mode.emulates, autocast=autocast, linears=self.layers)

    def _no_autocast(self) -> AbstractContextManager:
        """Switch autocast off: a manual optimization calls backward within its step's autocast, against
        PyTorch's advice.
        """
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    def _replacements(self) -> list[AbstractContextManager]:
        """Contexts for what PyTorch's own functions do in another format than the mode's, or slowly."""
        if self.emulate:
            return []
        contexts: list[AbstractContextManager] = []
        # CPUs have BF16, but PyTorch's attention with dropout runs in FP32 there
        if self.device.type == "cpu" and self.mode.attention == "bf16":
            contexts.append(Replacing("scaled_dot_product_attention", partial(attention, "bf16")))
        if self.layers is not None:
            contexts.append(Replacing("linear", self.layers.multiply))
        if self.mode.conv == "tf32":
            contexts.append(AlignedChannels())
        return [*contexts, BFloat16RNN()] if self.bf16_rnn else contexts

    def _copied(self) -> dict[str, Tensor]:
        """Copies of the FP32 weights in the model's format, without batch norm's. Gradients reach the FP32
        weights.
        """
        kept = {
            id(p)
            for layer in self.model.modules()
            if isinstance(layer, BATCH_NORM)
            for p in layer.parameters()
        }
        kept |= {id(p) for p in self.model.parameters() if p.is_complex()}  # which would lose a part
        copies = {id(p): p.to(self.mode.weights) for p in self.model.parameters() if id(p) not in kept}
        every = self.model.named_parameters(remove_duplicate=False)  # a tied weight has several names
        return {name: copies[id(p)] for name, p in every if id(p) in copies}

    @contextmanager
    def _with_copies(self) -> Iterator[None]:
        with own_flat_weights(self.model), reparametrized(self.model, self._copies):
            yield


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """New floating-point tensors have this dtype; None: that of before."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def store(module: nn.Module, dtype: torch.dtype, *, master: bool) -> None:
    """Cast weights and buffers to `dtype`, but no metrics, which module.to would cast. Complex ones stay,
    which would lose a part. master: weights and batch norm stay.
    """
    for parameter in () if master else filter(torch.is_floating_point, module.parameters()):
        parameter.data = parameter.data.to(dtype)
    for layer in module.modules():
        for name, buffer in layer.named_buffers(recurse=False):
            if buffer.is_floating_point() and not (master and isinstance(layer, BATCH_NORM)):
                setattr(layer, name, buffer.to(dtype))
