"""mpx.Record in a Trainer whose two processes share each layer, as tensor parallelism has it."""

import os
import warnings

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from processes import on_ranks
from pytorch_lightning.strategies import ModelParallelStrategy
from silent import silent_trainer
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

import mpx

BATCH, STEPS = 8, 2


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)

    def configure_model(self):
        parallelize_module(
            self, self.device_mesh["tensor_parallel"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )

    def training_step(self, batch, index):
        loss = self.down(self.up(batch[0]).relu()).square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(BATCH * STEPS, 16)), BATCH)


def _trains(rank, folder):
    warnings.simplefilter("ignore")  # Lightning's hints about workers
    # to Lightning, somebody else has started these processes
    os.environ |= {"LOCAL_RANK": "0", "NODE_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    trainer = silent_trainer(
        devices=1, num_nodes=2, strategy=strategy, callbacks=[mpx.Record(output_dir=folder)]
    )
    with pytest.raises(mpx.UserError, match="the model's weights are sharded over processes"):
        trainer.fit(Net())
    dist.destroy_process_group()


def test_weights_of_which_each_process_has_a_part_are_refused(tmp_path):
    on_ranks(2, _trains, str(tmp_path))
    assert not list(tmp_path.rglob("result.json"))
