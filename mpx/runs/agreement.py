"""Whether all processes of a run hold the same training state. DDP keeps it equal; what a model does on one rank alone may not."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mpx.shards import is_sharded


class Agreement(Callback):
    """At each save, compares weights, optimizer state, loss scale, masks and averages with those of rank 0, bit for bit.

    Batch norm's running means, and their averages, are each rank's own: those of rank 0 are saved, and sent to all before each use.
    Raises RuntimeError where they differ, on every rank and before anything is written.
    """

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.world_size == 1:
            return
        compared = {"loss scale and skipped steps": checkpoint["ModePrecision"]}
        if not any(is_sharded(weight) for weight in pl_module.parameters()):  # then each process has rows of its own
            compared |= _replicated(pl_module, checkpoint)
        names, values = zip(*_leaves(compared), strict=True)
        if differing := [name for name, differs in zip(names, _differ(values, trainer.strategy.root_device), strict=True) if differs]:
            raise RuntimeError(
                f"The processes of this run no longer hold the same state: {differing[0]} and {len(differing) - 1} others differ from "
                "rank 0's. Does the model act on its rank, or change its weights outside the optimizer?"
            )


def _replicated(module: pl.LightningModule, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What every process holds whole. The checkpoint of mpx's own module has its model's names, without `model.` before them."""
    weights, callbacks = {name for name, _ in module.named_parameters()}, checkpoint["callbacks"]
    names = [name for name in checkpoint["state_dict"] if name in weights or f"model.{name}" in weights]
    averages = callbacks["Ema"]["averages"] if "Ema" in callbacks else {}
    compared = {"weights": {name: checkpoint["state_dict"][name] for name in names}, "optimizer state": checkpoint["optimizer_states"]}
    return compared | {"masks": callbacks.get("Pruning"), "averages": {name: averages[name] for name in names if averages}}


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of everything in nested dicts and lists."""
    if isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{where}: {key}" if where else str(key))
    else:
        yield where, value


def _differ(values: tuple[Any, ...], device: torch.device) -> list[bool]:
    """For each value, whether any rank's differs from rank 0's. All ranks have as many, in the same order."""
    plain = [None if isinstance(value, Tensor) else value for value in values]
    theirs = [plain]
    dist.broadcast_object_list(theirs)
    found = [torch.tensor(mine != other, device=device) for mine, other in zip(plain, theirs[0], strict=True)]
    for number, value in enumerate(values):
        if isinstance(value, Tensor):
            mine = value.detach().to(device).contiguous().reshape(-1).view(torch.uint8)
            other = mine.clone()
            dist.broadcast(other, src=0)
            found[number] = (mine != other).any()
    flags = torch.stack(found).to(torch.uint8)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return flags.tolist()
