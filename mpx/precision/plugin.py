"""The precision plugin for Lightning: a mode on any device, loss scaling, and a count of skipped steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor, nn

from mpx.errors import UserError
from mpx.precision.computing import Computing, default_dtype, store
from mpx.precision.formats import stored_in
from mpx.precision.fp8 import Layers
from mpx.precision.modes import MODES, Mode, emulated
from mpx.precision.scaling import LossScale, idle, trouble
from mpx.precision.steps import ScaledSteps, has_gradients
from mpx.private.lightning import before_step
from mpx.private.torch_dispatch import tree_map
from mpx.system.processes import refuse_sharded


class ModePrecision(Precision):
    """A precision mode on any device.

    It is one class, because Lightning saves the scaler's state under its name: with several classes, a
    checkpoint from a GPU would silently resume at the initial scale on a CPU.

    max_skips: training has diverged after this many skipped steps in a row. every_linear: in fp8, linear
    layers of all sizes are FP8. project: for the user's own module. Its new tensors have the format of its
    weights, as with Lightning's precision="bf16-true".
    """

    def __init__(
        self,
        mode: Mode,
        device: torch.device,
        *,
        emulate: bool,
        loss_scale: dict[str, Any] | None = None,
        max_skips: int | None = None,
        project: bool = False,
        every_linear: bool = False,
    ):
        self.mode, self.device, self.emulate, self.max_skips = mode, device, emulate, max_skips
        self.project, self.precision = project, mode.lightning
        # moves to the first loss's device
        self.loss_scale = LossScale("cpu", **(loss_scale or {})) if mode.scaled else None
        self.scaled_steps = None if self.loss_scale is None else ScaledSteps(mode.name, self.loss_scale)
        self.layers = Layers(every=every_linear) if mode.emulates == "fp8" else None
        self.watched = False  # the next backward pass is watched, operation by operation
        self.steps = 0  # optimizer steps, with the skipped ones
        self._optimizers: list[Any] = []
        self._take(nn.Module())  # until Lightning gives the module

    def _take(self, model: nn.Module) -> None:
        self.model = model
        new_tensors = self.mode.weights if self.project and self.mode.weights != torch.float32 else None
        self.computing = Computing(
            self.mode, self.device, model, emulate=self.emulate, layers=self.layers, new_tensors=new_tensors
        )

    def convert_module(self, module: nn.Module) -> nn.Module:
        refuse_sharded(module.parameters())
        self._take(module)
        if self.mode.weights != torch.float32:
            store(module, self.mode.weights, master=self.mode.master)
        return module

    def convert_input(self, data: Any) -> Any:
        """Convert only x of mpx's batches (x, y), since the loss is computed in FP32, and 16 bits would round
        a regression's targets.
        """
        if self.mode.weights == torch.float32:
            return data
        stored = partial(stored_in, self.mode.weights)
        return tree_map(stored, data) if self.project else (stored(data[0]), data[1])

    def forward_context(self) -> AbstractContextManager:
        return self.computing.forward()

    def tensor_init_context(self) -> AbstractContextManager:
        """For Trainer.init_module and configure_model, whose weights stay FP32 where the mode keeps FP32
        ones.
        """
        return nullcontext() if self.mode.master else default_dtype(self.computing.new_tensors)

    module_init_context = tensor_init_context

    def pre_backward(self, tensor: Tensor, module: Any) -> Tensor:
        return super().pre_backward(self.loss_scale.scale_loss(tensor) if self.loss_scale else tensor, module)

    def backward(self, tensor: Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        scaled = nullcontext() if self.scaled_steps is None else self.scaled_steps.backward_pass()
        with self.computing.backward(), scaled:
            super().backward(tensor, model, *args, **kwargs)

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
                "copies cannot be sparse. Use sparse=False, or precision=amp, which keeps FP32 weights too."
            )
        if self.mode.master and not getattr(model, "module", model).automatic_optimization:  # DDP's module
            raise UserError(
                f"precision={self.mode.name} with manual optimization: the step's copies of the weights "
                "would be old after its first optimizer step. Use precision=amp, which keeps FP32 weights "
                "too."
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


def build_precision(precision: DictConfig, device: torch.device, *, project: bool = False) -> ModePrecision:
    """The plugin that a run's precision settings name. project: for a module of the user's own.

    Raises UserError for a number format that this device cannot run.
    """
    mode = MODES[precision.mode]
    loss_scale: dict[str, Any] = dict(precision.loss_scale) if mode.scaled else {}
    max_skips = loss_scale.pop("max_skips", None)
    emulate = emulated(mode, device, precision.emulate)
    return ModePrecision(
        mode, device, emulate=emulate, loss_scale=loss_scale, max_skips=max_skips, project=project,
        every_linear=precision.get("layers") == "all",
    )  # fmt: skip


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
