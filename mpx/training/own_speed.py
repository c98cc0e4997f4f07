"""What `speed=auto` can do for a module of the user's own, whose steps mpx does not know: the layout and cuDNN's search."""

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback

from mpx.acceleration.apply import say
from mpx.acceleration.choice import NO_CUDA, Choice, Facts, choose
from mpx.acceleration.layout import fails_in_layout, without_layout
from mpx.library.sparsity import steps_of
from mpx.printing import how_many
from mpx.private.torch_modules import CONVOLUTION


class OwnSpeed(Callback):
    """Chooses when training starts, because only then the device and the number of steps are known."""

    def __init__(self, speed: str, trainer: DictConfig):
        self.speed, self.wanted = speed, trainer
        self.choice: Choice | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before the optimizers' state is restored, which has the layout of the weights."""
        if self._choose(pl_module, trainer.strategy.root_device, steps=0).channels_last:
            pl_module.to(memory_format=torch.channels_last)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.choice = self._choose(pl_module, trainer.strategy.root_device, steps_of(trainer, pl_module)[0])
        torch.backends.cudnn.benchmark = self.choice.benchmark
        say(self.choice.line())

    def _choose(self, module: pl.LightningModule, device: torch.device, steps: int) -> Choice:
        """Raises UserError for a request that cannot be met."""
        cuda = device.type == "cuda"
        facts = Facts(
            cuda=cuda,
            steps=steps,
            against_graphs=_against_recording(module) if cuda else NO_CUDA,
            against_compiling=f"{_against_recording(module)}; call torch.compile in it",
            against_search=None if any(isinstance(layer, CONVOLUTION) for layer in module.modules()) else "no convolutions",
            against_channels_last=without_layout(module),
            loses_channels_last=_untried(module) if cuda else "on a CPU it pays at some batch sizes only",
        )
        wanted = self.wanted
        return choose(self.speed, wanted.compile, wanted.cuda_graphs, wanted.benchmark, wanted.channels_last, facts)


def _against_recording(module: pl.LightningModule) -> str:
    if module.automatic_optimization:
        return "a module's own training_step may do other things at each step"
    optimizers = module.optimizers()
    count = len(optimizers) if isinstance(optimizers, list) else 1
    return f"manual optimization: the module itself steps its {how_many(count, 'optimizer')}"


def _untried(module: pl.LightningModule) -> str | None:
    """Why channels_last is not safe; None where the module's own example input has gone through it."""
    if (example := module.example_input_array) is None:
        return "the module has no example_input_array to try it on; trainer.channels_last=true uses it untried"
    inputs = example if isinstance(example, tuple) else (example,)
    return fails_in_layout(module, *(x.to(module.device) if isinstance(x, torch.Tensor) else x for x in inputs))
