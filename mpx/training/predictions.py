"""Which samples of the test set a run has right, collected over batches and processes in the order of the set."""

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from mpx.runs.predictions import LARGEST
from mpx.spec import Spec


class Right:
    """For classification of whole samples. It waits for no device before `take`."""

    def __init__(self, spec: Spec):
        self.kept = spec.task == "classification" and spec.kind != "lm"
        self._batches: list[Tensor] = []

    def add(self, logits: Tensor, y: Tensor) -> None:
        """One batch of this process. logits, y: as in Spec."""
        if self.kept:
            self._batches.append(logits.argmax(-1) == y)

    def take(self, module: pl.LightningModule) -> np.ndarray | None:
        """Bool [samples] of all processes, which all call this, since the last call; None where it is not kept.

        Sample i is number i // ranks of rank i % ranks, as mpx.data.order.eval_batches spreads them. A test that is limited to some
        batches may leave gaps, and then nothing is kept.
        """
        if not self.kept:
            return None
        mine = torch.cat([*self._batches, torch.empty(0, dtype=torch.bool, device=module.device)])
        self._batches = []
        counts = module.all_gather(torch.tensor(len(mine), device=module.device)).reshape(-1).tolist()
        ranks, total = len(counts), sum(counts)
        if total > LARGEST or counts != [-(-(total - rank) // ranks) for rank in range(ranks)]:
            return None
        filled = torch.nn.functional.pad(mine, (0, max(counts) - len(mine))).to(torch.uint8)  # NCCL gathers no booleans
        return module.all_gather(filled).reshape(ranks, -1).T.reshape(-1)[:total].bool().cpu().numpy()
