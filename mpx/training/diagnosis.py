"""Where a loss that is not finite came from: the batch, and the first layer whose output is not finite."""

import math
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from mpx.runs.folder import LAST, damage

Place = tuple[int, int]  # an epoch and a batch in it, both counted from 0


def place(trainer: pl.Trainer, first: Place, clean: int) -> Place | None:
    """Where the batch after `clean` others is; None where the loader knows no length. first: where this process began."""
    if math.isinf(trainer.num_training_batches):
        return None
    epoch, batch = first
    more, batch = divmod(batch + clean, trainer.num_training_batches)
    return epoch + more, batch


def diagnosis(trainer: pl.Trainer, where: Place | None) -> str:
    """One sentence. Runs the batch once more, and says nothing of layers if the weights of that moment are lost."""
    if where is None:
        return "In which batch it began is not known, since the loader has no length."
    epoch, batch = where
    found = f"It began in batch {batch} of epoch {epoch}"
    if trainer.world_size > 1:  # a layer may wait for the other processes
        return f"{found}."
    try:
        return f"{found}{_layer(trainer, where)}."
    except Exception:  # whatever fails here, the loss is what the user must hear of
        return f"{found}."


@torch.no_grad()
def _layer(trainer: pl.Trainer, where: Place) -> str:
    model = trainer.lightning_module.model
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize()  # later steps still change the weights on another stream
    x, _ = trainer.precision_plugin.convert_input(trainer.train_dataloader.batch(*where))
    if not _finite(x):
        return ", whose inputs are infinite or NaN"
    before = ""
    if not _finite(list(model.parameters())):
        trainer.strategy.checkpoint_io.wait()
        before = _load_last(model, Path(trainer.default_root_dir) / LAST)
    bad: list[str] = []

    def look(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        if not bad and not _finite(output):
            bad.append(f"{name} ({type(layer).__name__})")

    leaves = [(name, layer) for name, layer in model.named_modules() if not any(layer.children())]
    for name, layer in leaves:
        layer.register_forward_hook(lambda *given, name=name: look(name, *given))
    with trainer.precision_plugin.forward_context():
        model(x)
    return f", in {bad[0]}{before}" if bad else ""


def _load_last(model: nn.Module, path: Path) -> str:
    """Go back to the newest checkpoint: the weights have been lost since. Raises any exception if there is none."""
    if damage(path) is not None:
        raise FileNotFoundError(path)
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["state_dict"])
    return f", already with the weights of step {checkpoint['global_step']}"


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    return all(map(_finite, value)) if isinstance(value, list | tuple) else True
