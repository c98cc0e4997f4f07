"""Whether all processes of a run hold the same training state. DDP keeps it equal, unless the model changes something on one rank alone."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mpx.errors import UserError
from mpx.printing import how_many
from mpx.processes import from_all


class Agreement(Callback):
    """At each save, compares weights, optimizer state, loss scale, masks and averages with those of rank 0, bit for bit.

    Each rank has running means of batch norm, and averages of them, of its own. Those of rank 0 are saved, and sent to all ranks before
    each validation and test.
    Raises UserError on every rank, before anything is written, if the ranks differ.
    """

    @torch.no_grad()
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for buffer in pl_module.buffers() if trainer.world_size > 1 else ():
            dist.broadcast(buffer, src=0)

    on_test_start = on_validation_start

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.world_size == 1:
            return
        compared = {"loss scale and skipped steps": checkpoint.get("ModePrecision", {})} | _replicated(pl_module, checkpoint)
        if differing := _differing(dict(_leaves(compared)), trainer.strategy.root_device):
            others = f" and {how_many(len(differing) - 1, 'other')}" if len(differing) > 1 else ""
            raise UserError(
                f"the processes of this run no longer hold the same state: {differing[0]}{others} differ from rank 0's. Leave out what the "
                "model does on one rank alone, changes outside its optimizer, and parameters that take no part in the loss of a step."
            )


def _replicated(module: pl.LightningModule, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What every process holds whole. The checkpoint of mpx's own module has its model's names, without `model.` before them."""
    weights, callbacks = {name for name, _ in module.named_parameters()}, checkpoint["callbacks"]
    names = [name for name in checkpoint["state_dict"] if name in weights or f"model.{name}" in weights]
    averages = callbacks.get("Ema", {}).get("averages", {})
    return {
        "weights": {name: checkpoint["state_dict"][name] for name in names},
        "optimizer state": checkpoint["optimizer_states"],
        "masks": callbacks.get("Pruning", {}).get("masks", {}),
        "averages": {name: averages[name] for name in names if name in averages},
    }


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Tensor]]:
    """(name, value) of every tensor and number in nested dicts and lists."""
    if isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{where}: {key}" if where else str(key))
    elif isinstance(value, Tensor | int | float):
        yield where, torch.as_tensor(value)


def _differing(found: dict[str, Tensor], device: torch.device) -> list[str]:
    """The names of the values in which any rank differs from rank 0."""
    kinds = from_all({name: (tuple(value.shape), str(value.dtype)) for name, value in found.items()})
    for theirs in kinds:
        if differing := [name for name in {**theirs, **kinds[0]} if theirs.get(name) != kinds[0].get(name)]:
            return differing
    flags = []
    for value in found.values():
        mine = value.detach().to(device).contiguous().reshape(-1).view(torch.uint8)
        other = mine.clone()
        dist.broadcast(other, src=0)
        flags.append((mine != other).any())
    differ = torch.stack(flags).to(torch.uint8)
    dist.all_reduce(differ, op=dist.ReduceOp.MAX)
    return [name for name, flag in zip(found, differ.tolist(), strict=True) if flag]
