"""The precision plugin for Lightning: autocast or emulation, loss scaling, and a count of skipped steps, on
every device.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor, nn

from mpx.errors import UserError
from mpx.precision.attention import RoundedAttention
from mpx.precision.compiler_cache import keep_apart
from mpx.precision.emulate import Emulate
from mpx.precision.formats import stored_in
from mpx.precision.fp8 import Float8Linear, Layers
from mpx.precision.modes import MODES, Mode, emulated
from mpx.precision.recurrent import BFloat16RNN, has_rnn
from mpx.precision.scaling import LossScale, idle, trouble
from mpx.precision.steps import ScaledSteps, has_gradients
from mpx.precision.switches import AlignedChannels
from mpx.private.lightning import before_step
from mpx.private.torch_dispatch import every_call_seen, tree_map
from mpx.private.torch_modules import BATCH_NORM, own_flat_weights, reparametrized
from mpx.system.processes import refuse_sharded

SCALER_KEY = "MixedPrecision"  # the key of the scaler of Lightning's own plugin in a checkpoint


class ModePrecision(Precision):
    """A precision mode on any device. It is one class, because Lightning saves the scaler's state under its
    name.

    With several classes, a checkpoint from a GPU would silently resume at the initial scale on a CPU.
    max_skips: training has diverged after this many skipped steps in a row. every_linear: in fp8, linear
    layers of all
        sizes are FP8.
    own: for the user's own module. Its new tensors have the format of its weights, as with Lightning's
        precision="bf16-true".
    """

    def __init__(
        self,
        mode: Mode,
        device: torch.device,
        *,
        emulate: bool,
        loss_scale: dict[str, Any] | None = None,
        max_skips: int | None = None,
        own: bool = False,
        every_linear: bool = False,
    ):
        self.mode, self.device, self.emulate, self.max_skips, self.own = mode, device, emulate, max_skips, own
        self.precision = mode.lightning
        # moves to the first loss's device
        self.loss_scale = LossScale("cpu", **(loss_scale or {})) if mode.scaled else None
        self.scaled_steps = None if self.loss_scale is None else ScaledSteps(mode.name, self.loss_scale)
        self.own_dtype = mode.weights if own and mode.weights != torch.float32 else None
        self.layers = Layers(every=every_linear) if mode.emulates == "fp8" else None
        self.bf16_rnn = False
        self.watched = False  # the next backward pass is watched, operation by operation
        self.steps = 0  # optimizer steps, with the skipped ones
        self.model = nn.Module()  # until Lightning gives the module
        self._optimizers: list[Any] = []
        # Weights of the newest forward pass in the model's format, if the mode keeps FP32 ones.
        self._copied: dict[str, Tensor] = {}
        # within forward_context, which holds the whole step where the optimization is manual
        self._emulating = False

    def convert_module(self, module: nn.Module) -> nn.Module:
        refuse_sharded(module.parameters())
        self.model = module
        on_gpu = not self.emulate and self.device.type == "cuda"
        self.bf16_rnn = on_gpu and self.mode.autocast == torch.bfloat16 and has_rnn(module)
        if self.mode.weights != torch.float32:
            _store(module, self.mode.weights, master=self.mode.master)
        return module

    def convert_input(self, data: Any) -> Any:
        """Convert only x of mpx's batches (x, y), since the loss is computed in FP32, and 16 bits would round
        a regression's targets.
        """
        if self.mode.weights == torch.float32:
            return data
        stored = partial(stored_in, self.mode.weights)
        return tree_map(stored, data) if self.own else (stored(data[0]), data[1])

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        mode = self.mode
        with ExitStack() as stack:
            stack.enter_context(self._new_tensors())
            if mode.master:
                self._copied = self._copies()
                if not torch.is_grad_enabled():  # no backward pass needs them
                    stack.callback(setattr, self, "_copied", {})
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
    def _with_copies(self) -> Iterator[None]:
        with own_flat_weights(self.model), reparametrized(self.model, self._copied):
            yield

    def tensor_init_context(self) -> AbstractContextManager:
        """For Trainer.init_module and configure_model, whose weights stay FP32 where the mode keeps FP32
        ones.
        """
        return nullcontext() if self.mode.master else self._new_tensors()

    module_init_context = tensor_init_context

    @contextmanager
    def _new_tensors(self) -> Iterator[None]:
        """Tensors that the user's own module makes have the format of its weights."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.own_dtype or before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def _replacements(self) -> list[AbstractContextManager]:
        """Contexts for what PyTorch's own functions do in another format than the mode's, or slowly."""
        if self.emulate:
            return []
        contexts: list[AbstractContextManager] = []
        if self.device.type == "cpu" and self.mode.attention == "bf16":
            contexts.append(RoundedAttention("bf16"))
        if self.layers is not None:
            contexts.append(Float8Linear(self.layers))
        if self.mode.conv == "tf32":
            contexts.append(AlignedChannels())
        return [*contexts, BFloat16RNN()] if self.bf16_rnn else contexts

    def _emulation(self) -> Emulate:
        autocast = self.mode.weights == torch.float32
        return Emulate(self.mode.emulates, autocast=autocast, linears=self.layers)

    def _copies(self) -> dict[str, Tensor]:
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

    def pre_backward(self, tensor: Tensor, module: Any) -> Tensor:
        return super().pre_backward(self.loss_scale.scale_loss(tensor) if self.loss_scale else tensor, module)

    def backward(self, tensor: Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        """Activation checkpointing computes parts of the forward pass again here, which must be as they
        were.
        """
        with ExitStack() as stack:
            stack.enter_context(self._new_tensors())
            if self.mode.master:
                stack.enter_context(self._with_copies())
            if self.scaled_steps is not None:
                stack.enter_context(self.scaled_steps.backward_pass())
            stack.enter_context(
                self._emulation() if self.emulate and not self._emulating else self._no_autocast()
            )
            if replacements := self._replacements():
                stack.enter_context(every_call_seen())
                for replaced in replacements:
                    stack.enter_context(replaced)
            super().backward(tensor, model, *args, **kwargs)
        self._copied = {}

    def _no_autocast(self) -> AbstractContextManager:
        """Switch autocast off: a manual optimization calls backward within its step's autocast, against
        PyTorch's advice.
        """
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    @contextmanager
    def train_step_context(self) -> Iterator[None]:
        steps = None if self.model.automatic_optimization else self.scaled_steps
        with (
            super().train_step_context(),
            nullcontext() if steps is None else steps.batch_by_hand(self._optimizers),
        ):
            yield

    def optimizer_step(  # type: ignore[override]  # as Lightning's own, which does not fit Fabric's
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Forward, backward, unscale, clip, step. An overflow of the gradients skips the step and lowers the
        scale.

        Without gradients, as after a training_step that returned None, no step is taken.
        """
        if self.scaled_steps is None:
            result = super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
            self.steps += has_gradients(optimizer)
            return result
        result = closure()
        if not has_gradients(optimizer):
            return result
        self.steps += 1
        step = self.scaled_steps.step if model.automatic_optimization else self.scaled_steps.step_by_hand
        return step(optimizer, result, partial(before_step, self, model, optimizer), **kwargs)

    def clip_gradients(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Unscale the gradients first if a manual optimization clips them before its step, as with
        GradScaler.unscale_.
        """
        # of Lightning's wrapper, which a manual optimization has
        plain = getattr(optimizer, "optimizer", optimizer)
        if self.scaled_steps is not None and plain is not optimizer and not self.model.automatic_optimization:
            self.scaled_steps.unscale_by_hand(plain)
        super().clip_gradients(optimizer, *args, **kwargs)

    def connect(
        self, model: nn.Module, optimizers: list[Any], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Any], list[Any]]:
        """Raises UserError for an optimizer or a module that the mode cannot serve."""
        self._optimizers = optimizers
        if self.scaled_steps is not None:
            self.scaled_steps.connect(optimizers)
        sparse = (layer for layer in model.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)))
        if self.mode.master and any(layer.sparse for layer in sparse):
            raise UserError(
                f"precision={self.mode.name} with nn.Embedding(sparse=True): the gradients of its weight "
                "copies cannot "
                "be sparse. Use sparse=False, or precision=amp, which keeps FP32 weights too."
            )
        if self.mode.master and not getattr(model, "module", model).automatic_optimization:  # DDP's module
            raise UserError(
                f"precision={self.mode.name} with manual optimization: the step's copies of the weights "
                "would be old after "
                "its first optimizer step. Use precision=amp, which keeps FP32 weights too."
            )
        return super().connect(model, optimizers, lr_schedulers)

    def teardown(self) -> None:
        if self.scaled_steps is not None:
            self.scaled_steps.disconnect()
        super().teardown()

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Count as one optimizer step. A replay runs no Python that counts, and a failed recording counts
        twice.
        """
        before = self.steps
        yield
        self.steps = before + 1

    @property
    def skipped_last(self) -> Tensor | None:
        """Whether the newest step was skipped, as a tensor on the device; None in a mode that never skips."""
        return self.loss_scale.in_a_row > 0 if self.loss_scale else None

    @property
    def skipped(self) -> int:
        return int(self.loss_scale.skipped) if self.loss_scale else 0

    def trouble(self) -> str | None:
        """One line about what is wrong with the loss scale and what to try; None if nothing is. Waits for the
        device.
        """
        return trouble(self.loss_scale, self.steps, self.max_skips) if self.loss_scale else None

    def idle(self) -> str | None:
        """As `trouble`, for a completed run that skipped all steps, but fewer than `max_skips`."""
        return idle(self.loss_scale, self.steps) if self.loss_scale else None

    def scalars(self) -> dict[str, float]:
        """Values for TensorBoard; none in a mode without a loss scale. Waits for the device."""
        if self.loss_scale is None:
            return {}
        return {"numerics/loss_scale": self.loss_scale.scale.item(), "numerics/skipped_steps": self.skipped}

    def record(self) -> dict[str, Any]:
        """For result.json: the loss scale, the steps, and in fp8 the format of each linear layer."""
        scale = None if self.loss_scale is None else self.loss_scale.record()
        counts = {"optimizer_steps": self.steps - self.skipped, "skipped_steps": self.skipped}
        layers = {} if self.layers is None else {"linear_layers": self.layers.record(self.model)}
        return layers | {"loss_scale": scale} | counts

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps} | (
            {"loss_scale": self.loss_scale.state_dict()} if self.loss_scale else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state_dict(state["loss_scale"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the scaler as Lightning's own plugin does, too, so that a Trainer without mpx continues at the
        same scale.
        """
        if self.loss_scale is not None:
            checkpoint[SCALER_KEY] = self.loss_scale.grad_scaler_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load a checkpoint of Lightning's own plugin."""
        if (
            self.loss_scale is not None
            and type(self).__qualname__ not in checkpoint
            and SCALER_KEY in checkpoint
        ):
            self.loss_scale.load_state_dict(checkpoint[SCALER_KEY])


def build_precision(precision: DictConfig, device: torch.device, *, own: bool = False) -> ModePrecision:
    """The plugin that a run's precision settings name. own: for a module of the user's own.

    Raises UserError for a number format that this device cannot run.
    """
    mode = MODES[precision.mode]
    loss_scale: dict[str, Any] = dict(precision.loss_scale) if mode.scaled else {}
    max_skips = loss_scale.pop("max_skips", None)
    emulate = emulated(mode, device, precision.emulate)
    every = precision.get("layers") == "all"
    return ModePrecision(
        mode, device, emulate=emulate, loss_scale=loss_scale, max_skips=max_skips, own=own, every_linear=every
    )


def mode_of(plugin: Precision) -> Mode:
    """The mode of a precision plugin, mpx's own or one of Lightning's.

    Raises UserError if its arithmetic is that of none of mpx's modes.
    """
    if isinstance(plugin, ModePrecision):
        return plugin.mode
    # the first mode of each name
    modes: dict[str, Mode] = {mode.lightning: mode for mode in reversed(MODES.values())}
    if plugin.precision not in modes:
        raise UserError(
            f"Trainer(precision={plugin.precision!r}) is not a mode of mpx. Use {', '.join(modes)}, "
            "or plugins=mpx.Precision(MODE)."
        )
    return modes[plugin.precision]


def scale_of(plugin: Precision) -> Tensor | None:
    """The current loss scale; None in a mode without one."""
    if isinstance(plugin, ModePrecision):
        return None if plugin.loss_scale is None else plugin.loss_scale.scale
    scaler = getattr(plugin, "scaler", None)
    return None if scaler is None else torch.tensor(scaler.get_scale())


def _store(module: nn.Module, dtype: torch.dtype, *, master: bool) -> None:
    """Cast weights and buffers to `dtype`, but no metrics, which module.to would cast. Complex ones stay,
    which would lose a part. master: weights and batch norm stay.
    """
    for parameter in () if master else filter(torch.is_floating_point, module.parameters()):
        parameter.data = parameter.data.to(dtype)
    for layer in module.modules():
        for name, buffer in layer.named_buffers(recurse=False):
            if buffer.is_floating_point() and not (master and isinstance(layer, BATCH_NORM)):
                setattr(layer, name, buffer.to(dtype))
