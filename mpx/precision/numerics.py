"""Sample the gradients of a run: their norm, the shares that underflow or overflow, and their exponents."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.hooks import RemovableHandle

from mpx.precision.formats import HALVES, upcast
from mpx.precision.gradients import BINS, GradientWatch, exponents
from mpx.precision.plugin import ModePrecision, mode_of, scale_of
from mpx.private.torch_modules import CONVOLUTION

INTERVAL, REPLAYED_INTERVAL = 200, 1000  # steps, of numerics.every=auto
# Fields of result.json; in TensorBoard, below numerics/.
TAGS = ("gradient_underflow_fraction", "gradient_underflow_unscaled_fraction", "gradient_overflow_fraction")


def sampling_interval(requested: int | str, *, replayed: bool) -> int:
    """numerics.every in optimizer steps. replayed: most steps replay a CUDA graph, beside which a sampled
    step costs more.
    """
    if isinstance(requested, int):
        return requested
    return REPLAYED_INTERVAL if replayed else INTERVAL


class Numerics(Callback):
    """Counts gradients that vanish or overflow, in any Trainer: `pl.Trainer(callbacks=[mpx.Numerics()])`.

    It logs for each sampled step: numerics/gradient_norm, of unscaled and unclipped gradients, and the shares
    (0 to 1) of nonzero gradients numerics/gradient_underflow_fraction, …_underflow_unscaled_fraction (in FP16
    without a loss scale) and …_overflow_fraction. They are counted before they are rounded, in all processes
    of the run. `record()` returns the shares over all sampled steps.

    every: optimizer steps from one sample to the next; auto: 200. A sampled step takes longer
    (experiments/numerics_cost). histogram: also count the exponents of the gradients of each layer's outputs.
    network: a function from the LightningModule to the module whose layers these are; None: it is this one.

    In manual optimization, all backward passes of a sampled step count, and the norm is that of the first
    optimizer's gradients. Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740 (figure 2).
    """

    def __init__(
        self,
        every: int | str = "auto",
        *,
        histogram: bool = False,
        network: Callable[[pl.LightningModule], nn.Module] | None = None,
    ):
        self.every = sampling_interval(every, replayed=False)
        self.histogram, self.network = histogram, network
        self._forget()
        self._hooks: dict[str, RemovableHandle] = {}  # by layer
        self._watch: GradientWatch | None = None  # of the backward pass that runs now
        self._step = -1  # the newest one that a batch has begun
        self._sampling = self._fresh = False  # this step is sampled; its sample is not logged yet

    def _forget(self) -> None:
        self.samples = 0
        self.totals: Tensor | None = None  # GradientWatch's counts over the whole run
        self.newest: dict[str, Tensor] = {}  # values of the last sampled step
        self.layers: dict[str, Tensor] = {}  # exponents, as mpx.precision.gradients.exponents counts them
        self._exponents: dict[str, Tensor] = {}  # exponents of this step, in this process

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forget an earlier training. Lightning loads a checkpoint's state after this."""
        if stage == "fit":
            self._forget()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        device = trainer.strategy.root_device
        self.totals = None if self.totals is None else self.totals.to(device)
        self.layers = {name: counts.to(device) for name, counts in self.layers.items()}
        if self.histogram:
            network = pl_module if self.network is None else self.network(pl_module)
            for name, layer in network.named_modules():
                if isinstance(layer, (nn.Linear, CONVOLUTION, nn.RNNBase)):
                    gather = partial(self._gather, trainer.precision_plugin, name)
                    self._hooks[name] = layer.register_forward_hook(gather)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        while self._hooks:
            self._hooks.popitem()[1].remove()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step - 1

    def _gather(self, plugin: Precision, name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        # an RNN's outputs and states; a packed sequence's data and batch sizes
        while isinstance(output, tuple):
            output = output[0]
        if self._sampling and output.requires_grad:
            output.register_hook(partial(self._add, plugin, name))

    def _add(self, plugin: Precision, name: str, gradient: Tensor) -> None:
        scale = scale_of(plugin)
        counted = exponents(gradient, 1.0 if scale is None else scale)
        self._exponents[name] = counted + self._exponents[name] if name in self._exponents else counted

    def _keep_exponents(self, trainer: pl.Trainer) -> None:
        """Add this step's exponents to those of the run. A process may have used fewer layers than
        another.
        """
        by_layer, self._exponents = self._exponents, {}
        if trainer.world_size > 1 and self._hooks:
            nothing = torch.zeros(BINS, dtype=torch.int64, device=trainer.strategy.root_device)
            counted = torch.stack([by_layer.get(name, nothing) for name in self._hooks])
            by_layer = dict(zip(self._hooks, trainer.strategy.reduce(counted, reduce_op="sum"), strict=True))
        for name, counts in by_layer.items():
            self.layers[name] = counts + self.layers[name] if name in self.layers else counts

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        before, self._step = self._step, trainer.global_step
        if self._step != before:  # not another batch of an accumulated step
            # A batch of a manual optimization may have several steps.
            self._sampling = self._step // self.every > before // self.every
        self._announce(trainer, self._sampling)

    def _announce(self, trainer: pl.Trainer, watched: bool) -> None:
        if isinstance(trainer.precision_plugin, ModePrecision):
            trainer.precision_plugin.watched = watched

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._sampling:
            plugin = trainer.precision_plugin
            scale = scale_of(plugin)
            self._watch = GradientWatch(mode_of(plugin).narrowest, None if scale is None else scale.clone())
            self._watch.__enter__()

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Each batch of an accumulated step counts."""
        if self._watch is None:
            return
        counts = self._end_watch(self._watch)
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            counts = (
                torch.zeros(1 + len(TAGS), dtype=torch.float64, device=device) if counts is None else counts
            )
            counts = trainer.strategy.reduce(counts, reduce_op="sum")
        if counts is None:
            return
        self.totals = counts if self.totals is None else self.totals + counts
        self.newest |= dict(zip(TAGS, counts[1:] / counts[0].clamp(min=1), strict=True))

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """End the watch, which would count later computations of this process."""
        if self._watch is not None:
            self._end_watch(self._watch)

    def _end_watch(self, watch: GradientWatch) -> Tensor | None:
        watch.__exit__(None, None, None)
        self._watch = None
        return watch.counts

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """The gradients are unscaled here, and not clipped yet."""
        if self._sampling:
            if not self._fresh:
                parameters = (p for group in optimizer.param_groups for p in group["params"])
                self.newest["gradient_norm"] = _norm([p.grad for p in parameters if p.grad is not None])
                self.samples += 1
            self._sampling, self._fresh = not pl_module.automatic_optimization, True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fresh:
            self._keep_exponents(trainer)
        if self._fresh and trainer.loggers:
            # waits for the device, once
            values = torch.stack([value.double() for value in self.newest.values()]).tolist()
            tags = [f"numerics/{name}" for name in self.newest]
            for logger in trainer.loggers:
                logger.log_metrics(dict(zip(tags, values, strict=True)), step=trainer.global_step)
        # else the next batch begins another step
        self._sampling = self._sampling and pl_module.automatic_optimization
        self._announce(trainer, False)
        self._fresh = False

    def record(self) -> dict[str, Any]:
        """The shares over all sampled steps, for result.json."""
        counts = None if self.totals is None else self.totals.tolist()
        if not counts or not counts[0]:
            reason = "no nonzero gradient of a matrix product or convolution in a sampled backward pass"
            return dict.fromkeys(TAGS) | {"gradient_samples": self.samples, f"{TAGS[0]}_reason": reason}
        shares = [count / counts[0] for count in counts[1:]]
        return dict(zip(TAGS, shares, strict=True)) | {"gradient_samples": self.samples}

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "totals": self.totals, "layers": self.layers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this before `on_fit_start`, which moves the counts to the device."""
        self.samples, self.totals = state_dict["samples"], state_dict["totals"]
        self.layers = dict(state_dict["layers"])


def _norm(gradients: list[Tensor]) -> Tensor:
    """The norm in FP32, since that of 16-bit gradients would be rounded to 16 bits, and in FP16 be infinite
    above 65,504.
    """
    if any(gradient.dtype in HALVES for gradient in gradients):
        # one by one, since a copy of all takes memory
        gradients = [get_total_norm([upcast(gradient)]) for gradient in gradients]
    return get_total_norm(gradients)
