"""Batches from a split that is entirely on the device: no worker processes, and no copies to wait for."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mpx.machine import cpu_threads


class ResidentReader:
    """Keeps the split on `device` and cuts batches there."""

    def __init__(self, split, seed: int, device: torch.device):
        self.split, self.seed, self.device = split.to(device), seed, device

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """One finished (x, y) on the device per entry of `indices` (int64 [B], on the CPU). All random choices are made in this call."""
        if not indices:
            return iter(())
        with cpu_threads(1):  # too little work for several threads
            plan, order = self.split.plan(self.seed, epoch), torch.cat(indices)
        plan = None if plan is None else self._send(plan)
        order = self._send(order)  # one copy per epoch instead of one per batch
        return self._cut(order.split([len(i) for i in indices]), plan)

    def _cut(self, indices: tuple[Tensor, ...], plan: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        for index in indices:
            rows = None if plan is None else plan[index]
            yield self.split.finish(*self.split.raw(index, rows), rows)

    def _send(self, values: Tensor) -> Tensor:
        """Copy to the device without waiting, so that evaluation is queued while the last training steps still run."""
        return values.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else values.to(self.device)

    def close(self) -> None:
        """There is nothing to stop."""
