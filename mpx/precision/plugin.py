"""The precision plugin for Lightning: autocast or emulation, loss scaling, and a count of skipped steps, on every device."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor, nn

from mpx.closures import computed_once, computes_loss_several_times
from mpx.compiler_cache import keep_apart
from mpx.errors import UserError
from mpx.precision import skips
from mpx.precision.attention import RoundedAttention
from mpx.precision.emulate import Emulate
from mpx.precision.fp8 import Float8Linear, Layers
from mpx.precision.modes import Mode
from mpx.precision.recurrent import BFloat16RNN, has_rnn
from mpx.precision.rounding import stored_in
from mpx.precision.scaling import LossScale
from mpx.precision.tf32 import AlignedChannels
from mpx.private.lightning import before_step
from mpx.private.torch_dispatch import every_call_seen, tree_map, version
from mpx.private.torch_modules import BATCH_NORM, own_flat_weights, reparametrized
from mpx.processes import refuse_sharded

SCALER_KEY = "MixedPrecision"  # the key of the scaler of Lightning's own plugin in a checkpoint


class ModePrecision(Precision):
    """A precision mode on any device. It is one class, because Lightning saves the scaler's state under the name of the plugin's class.

    With several classes, a checkpoint from a GPU would silently resume at the initial scale on a CPU.
    max_skips: training has diverged after this many skipped steps in a row. every_linear: in fp8, linear layers of all sizes are FP8.
    own: for the user's own module. Its new tensors have the format of its weights, as with Lightning's precision="bf16-true". Each use of a
    weight casts it again, as with "bf16-mixed", because the module's own step may change weights between two uses.
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
        self.loss_scale = LossScale("cpu", **(loss_scale or {})) if mode.scaled else None  # moves to the device of the first loss
        self.own_dtype = mode.weights if own and mode.weights != torch.float32 else None
        self.layers = Layers(every=every_linear) if mode.emulates == "fp8" else None
        self.bf16_rnn = False
        self.model: nn.Module | None = None
        self.steps = 0  # optimizer steps, with the skipped ones
        self._earlier = (0, 0)  # steps, and skipped ones, before this process continued the run
        self._copied: dict[str, Tensor] = {}  # the weights of the newest forward pass in the model's format, if the mode keeps FP32 ones
        self._watch: Any = nullcontext()  # context of the next backward pass
        self._emulating = False  # within forward_context, which holds the whole step where the optimization is manual
        self._passes = 0  # backward passes of a scaled loss
        self._unscaled_at: dict[Any, int] = {}  # by optimizer: their number when its gradients were last unscaled
        self._unscaled: dict[Any, Tensor] = {}  # optimizers whose gradients are unscaled before their step: whether they overflowed
        self._in_scaled_pass = False
        self._several = False  # optimizers of a manual optimization have stepped since the scale was adjusted

    def convert_module(self, module: nn.Module) -> nn.Module:
        refuse_sharded(module.parameters())
        self.model = module
        on_gpu = not self.emulate and self.device.type == "cuda"
        self.bf16_rnn = on_gpu and self.mode.autocast == torch.bfloat16 and has_rnn(module)
        if self.mode.weights != torch.float32:
            _store(module, self.mode.weights, master=self.mode.master)
        return module

    def convert_input(self, data: Any) -> Any:
        """Convert only x of mpx's batches (x, y), since the loss is computed in FP32, and 16 bits would round a regression's targets."""
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
                stack.enter_context(torch.autocast(self.device.type, dtype=mode.autocast, cache_enabled=not self.own))
            for replaced in self._replacements():
                stack.enter_context(replaced)
            yield

    @contextmanager
    def _with_copies(self) -> Iterator[None]:
        with own_flat_weights(self.model), reparametrized(self.model, self._copied):
            yield

    def tensor_init_context(self) -> AbstractContextManager:
        """For Trainer.init_module and configure_model, whose weights stay FP32 where the mode keeps FP32 ones."""
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
        found: list[AbstractContextManager] = []
        if self.device.type == "cpu" and self.mode.attention == "bf16":
            found.append(RoundedAttention("bf16"))
        if self.layers is not None:
            found.append(Float8Linear(self.layers))
        if self.mode.conv == "tf32":
            found.append(AlignedChannels())
        return [*found, BFloat16RNN()] if self.bf16_rnn else found

    def _emulation(self) -> Emulate:
        autocast = self.mode.weights == torch.float32
        return Emulate(self.mode.emulates, autocast=autocast, linears=self.layers, cached=not self.own)

    def _copies(self) -> dict[str, Tensor]:
        """Copies of the FP32 weights in the model's format, without batch norm's. Gradients reach the FP32 weights."""
        kept = {id(p) for layer in self.model.modules() if isinstance(layer, BATCH_NORM) for p in layer.parameters()}
        kept |= {id(p) for p in self.model.parameters() if p.is_complex()}  # which would lose a part
        copies = {id(p): p.to(self.mode.weights) for p in self.model.parameters() if id(p) not in kept}
        every = self.model.named_parameters(remove_duplicate=False)  # a tied weight has several names
        return {name: copies[id(p)] for name, p in every if id(p) in copies}

    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:
        return super().pre_backward(self.loss_scale.scale_loss(tensor) if self.loss_scale else tensor, module)

    def backward(self, tensor: Tensor, model: pl.LightningModule, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Activation checkpointing computes parts of the forward pass again here, which must be as they were."""
        with ExitStack() as stack:
            stack.enter_context(self._new_tensors())
            if self.mode.master:
                stack.enter_context(self._with_copies())
            self._passes += 1
            self._in_scaled_pass = True
            stack.callback(setattr, self, "_in_scaled_pass", False)
            stack.enter_context(self._watch)
            stack.enter_context(self._emulation() if self.emulate and not self._emulating else self._no_autocast())
            if replacements := self._replacements():
                stack.enter_context(every_call_seen())
                for replaced in replacements:
                    stack.enter_context(replaced)
            super().backward(tensor, model, optimizer, *args, **kwargs)
        self._copied = {}

    def _no_autocast(self) -> AbstractContextManager:
        """Switch autocast off: a manual optimization calls backward within its step's autocast, against PyTorch's advice."""
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    @contextmanager
    def train_step_context(self) -> Iterator[None]:
        """One iteration, at whose end the scale is adjusted once, even if a manual optimization has stepped several optimizers. Otherwise
        later gradients would have another scale."""
        manual = self.loss_scale is not None and not self.model.automatic_optimization
        with super().train_step_context(), self._unscaled_backward_refused() if manual else nullcontext():
            yield
        left, self._unscaled = self._unscaled, {}
        for overflowed in left.values():
            self.loss_scale.note(overflowed)
        if self._several or left:
            self._several = False
            self.loss_scale.update_after_several()
        for optimizer in left:  # clipped without a step: the next batch may add scaled gradients to them
            self.loss_scale.rescale_(_gradients(optimizer))
            del self._unscaled_at[optimizer]

    @contextmanager
    def _unscaled_backward_refused(self) -> Iterator[None]:
        """loss.backward() must add nothing to the gradients of an optimizer, which are divided by the loss scale."""
        plain = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            before = None if self._in_scaled_pass else self._changes_of_gradients()
            plain(*args, **kwargs)
            if before not in (None, self._changes_of_gradients()):
                raise self._not_scaled("loss.backward() adds gradients that are")

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = plain

    def optimizer_step(self, optimizer: Any, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Forward, backward, unscale, clip, step. An overflow of the gradients skips the step and lowers the scale.

        Without gradients, as after a training_step that returned None, no step is taken.
        """
        if self.loss_scale is None:
            result = super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
            self.steps += _has_gradients(optimizer)
            return result
        result = closure()
        if not _has_gradients(optimizer):
            return result
        self.steps += 1
        kwargs["closure"] = computed_once(result, self._refusal_of(optimizer))
        if not model.automatic_optimization:
            return self._one_of_several(optimizer, model, **kwargs)
        self._unscale(optimizer)
        before_step(self, model, optimizer)
        output = self.loss_scale.step(optimizer, **kwargs)
        self.loss_scale.update()
        return output

    def _unscale(self, optimizer: Any) -> None:
        """Divide the gradients by the scale if a scaled backward pass has come since that was last done."""
        if self._has_scaled(optimizer):
            self._unscaled_at[optimizer] = self._passes
            self.loss_scale.unscale_(_gradients(optimizer))
        elif not self.model.automatic_optimization:
            raise self._not_scaled(f"the gradients of {type(optimizer).__name__} are")

    def _has_scaled(self, optimizer: Any) -> bool:
        return self._unscaled_at.get(optimizer, 0) < self._passes

    def _one_of_several(self, optimizer: Any, model: pl.LightningModule, **kwargs: Any) -> Any:
        """A step of a manual optimization: skipped if this optimizer's own gradients overflowed, as torch.amp.GradScaler does."""
        self._unscale_once(optimizer)
        before_step(self, model, optimizer)  # its hooks may clip the gradients, which are unscaled already
        self.loss_scale.found_inf.copy_(self._unscaled.pop(optimizer))
        output = self.loss_scale.step(optimizer, **kwargs)
        self.loss_scale.stepped()
        self._several = True
        return output

    def _unscale_once(self, optimizer: Any) -> None:
        if optimizer not in self._unscaled:
            self._unscale(optimizer)
            self._unscaled[optimizer] = self.loss_scale.found_inf.clone()
            self.loss_scale.found_inf.zero_()

    def _not_scaled(self, what: str) -> UserError:
        return UserError(
            f"precision={self.mode.name}: {what} not multiplied by the loss scale, by which each step divides. "
            "Use self.manual_backward(loss)."
        )

    def _changes_of_gradients(self) -> list[tuple[int, int]]:
        every = (gradient for optimizer in self.model.trainer.optimizers for gradient in _gradients(optimizer))
        return [(id(gradient), version(gradient)) for gradient in every]

    def clip_gradients(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Unscale the gradients first if a manual optimization clips them before its step, as with GradScaler.unscale_."""
        plain = getattr(optimizer, "optimizer", optimizer)  # of Lightning's wrapper, which a manual optimization has
        if self.loss_scale is not None and plain is not optimizer and not self.model.automatic_optimization:
            self._unscale_once(plain)
        super().clip_gradients(optimizer, *args, **kwargs)

    def watch(self, context: AbstractContextManager | None) -> None:
        """Enter `context` around all backward passes from now on; None: no context."""
        self._watch = nullcontext() if context is None else context

    def connect(self, model: nn.Module, optimizers: list[Any], lr_schedulers: list[Any]) -> tuple[nn.Module, list[Any], list[Any]]:
        """Raises UserError for an optimizer or a module that the mode cannot serve."""
        for optimizer in optimizers if self.loss_scale is not None else ():
            if computes_loss_several_times(optimizer):
                raise UserError(self._refusal_of(optimizer))
            optimizer.register_step_pre_hook(self._refuse_scaled_gradients)
        sparse = (layer for layer in model.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)))
        if self.mode.master and any(layer.sparse for layer in sparse):
            raise UserError(
                f"precision={self.mode.name} with nn.Embedding(sparse=True): the gradients of its weight copies cannot "
                "be sparse. Use sparse=False, or precision=amp, which keeps FP32 weights too."
            )
        if self.mode.master and not getattr(model, "module", model).automatic_optimization:  # DDP's module
            raise UserError(
                f"precision={self.mode.name} with manual optimization: the step's copies of the weights would be old after its first "
                "optimizer step. Use precision=amp, which keeps FP32 weights too."
            )
        return super().connect(model, optimizers, lr_schedulers)

    def _refusal_of(self, optimizer: Any) -> str:
        return (
            f"precision={self.mode.name} with {type(optimizer).__name__}, which computes the loss several times a step: "
            "a loss scale judges one backward pass a step. Use precision=amp_bf16, bf16_true, tf32 or fp32, or an "
            "optimizer that computes it once."
        )

    def _refuse_scaled_gradients(self, optimizer: Any, *step: Any) -> None:
        """Before each step of PyTorch's optimizer, also one that the module takes past Lightning's."""
        if self._has_scaled(optimizer) and _has_gradients(optimizer):
            raise UserError(
                f"precision={self.mode.name}: {type(optimizer).__name__}.step() would apply gradients that are still "
                "multiplied by the loss scale. Call step() of Lightning's optimizer, as self.optimizers() returns it."
            )

    @property
    def watched(self) -> bool:
        """Whether the next backward pass is watched."""
        return not isinstance(self._watch, nullcontext)

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Count as one optimizer step. A replay runs no Python that counts, and a failed recording counts twice."""
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
        """One line about what is wrong with the loss scale and what to try; None if nothing is. Waits for the device."""
        return skips.trouble(self.loss_scale, self.steps, self.max_skips, self.own) if self.loss_scale else None

    def idle(self) -> str | None:
        """As `trouble`, for a completed run that skipped all steps of its last part, but fewer than `max_skips`."""
        return skips.idle(self.loss_scale, self.steps, self._earlier, self.own) if self.loss_scale else None

    def scalars(self) -> dict[str, float]:
        """Values for TensorBoard; none in a mode without a loss scale. Waits for the device."""
        if self.loss_scale is None:
            return {}
        return {"numerics/loss_scale": self.loss_scale.scale.item(), "numerics/skipped_steps": self.skipped}

    def record(self) -> dict[str, Any]:
        """For result.json: the loss scale, the steps, and in fp8 the format of each linear layer."""
        scale = None
        if self.loss_scale is not None:
            s = self.loss_scale
            scale = {"initial": s.initial, "final": s.scale.item(), "min": s.lowest.item(), "max": s.highest.item(), "dynamic": s.dynamic}
        layers = {} if self.layers is None else {"linear_layers": self.layers.record(self.model)}
        return layers | {"loss_scale": scale, "optimizer_steps": self.steps - self.skipped, "skipped_steps": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps} | ({"loss_scale": self.loss_scale.state_dict()} if self.loss_scale else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state["steps"], int) or state["steps"] < 0:
            raise ValueError(f"its steps is {state['steps']!r}, not a count")
        self.steps = state["steps"]
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state_dict(state["loss_scale"])
        self._earlier = (self.steps, self.skipped)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the scaler as Lightning's own plugin does, too, so that a Trainer without mpx continues at the same scale."""
        if self.loss_scale is not None:
            checkpoint[SCALER_KEY] = self.loss_scale.grad_scaler_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load a checkpoint of Lightning's own plugin."""
        if self.loss_scale is not None and type(self).__qualname__ not in checkpoint and SCALER_KEY in checkpoint:
            self.loss_scale.load_state_dict(checkpoint[SCALER_KEY])


def _gradients(optimizer: Any) -> Iterator[Tensor]:
    return (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def _has_gradients(optimizer: Any) -> bool:
    return next(_gradients(optimizer), None) is not None


def _store(module: nn.Module, dtype: torch.dtype, *, master: bool) -> None:
    """Cast weights and buffers to `dtype`, but no metrics, which module.to would cast. Complex ones stay, which would lose a part.
    master: weights and batch norm stay."""
    for parameter in () if master else filter(torch.is_floating_point, module.parameters()):
        parameter.data = parameter.data.to(dtype)
    for layer in module.modules():
        for name, buffer in layer.named_buffers(recurse=False):
            if buffer.is_floating_point() and not (master and isinstance(layer, BATCH_NORM)):
                setattr(layer, name, buffer.to(dtype))
