"""Which samples of the test set a run has right, collected over batches and processes in the order of the set."""

import numpy as np
import torch
from torch import Tensor

from mpx.processes import from_all
from mpx.record.files import MAX_SAMPLES
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

    def take(self) -> np.ndarray | None:
        """Bool [samples] of all processes, which all call this, since the last call; None where it is not kept.

        Sample i is number i // ranks of rank i % ranks, as mpx.data.order.eval_batches spreads them. A test that is limited to some
        batches may leave gaps, and then nothing is kept.
        """
        if not self.kept:
            return None
        mine = torch.cat(self._batches).cpu().numpy() if self._batches else np.empty(0, dtype=bool)
        self._batches = []
        parts = from_all(mine)
        ranks, total = len(parts), sum(map(len, parts))
        if total > MAX_SAMPLES or [len(part) for part in parts] != [-(-(total - rank) // ranks) for rank in range(ranks)]:
            return None
        found = np.empty(total, dtype=bool)
        for rank, part in enumerate(parts):
            found[rank::ranks] = part
        return found
