"""A Lightning module with activation checkpointing."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Recomputing(pl.LightningModule):
    """reentrant: how its `block` is computed again in the backward pass; None: it is not. A subclass may have
    a `head` after it.
    """

    def __init__(self, reentrant, automatic):
        super().__init__()
        torch.manual_seed(0)
        self.reentrant, self.automatic_optimization, self.head = reentrant, automatic, nn.Identity()

    def training_step(self, batch, index):
        x = batch.requires_grad_()
        out = (
            self.block(x)
            if self.reentrant is None
            else checkpoint(self.block, x, use_reentrant=self.reentrant)
        )
        loss = self.head(out).float().square().mean()
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        self.optimizers().step()
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
