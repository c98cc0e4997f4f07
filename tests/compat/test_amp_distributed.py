"""Two processes with DistributedDataParallel: whatever each started from, their weights and master weights
are the same afterwards.
"""

import os

import processes  # noqa: F401  # its forkserver has imported PyTorch
import pytest
import torch
from helpers_for_amp import DYNAMIC, backward
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mpx.compat import amp


def train(rank, level, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    model = DistributedDataParallel(model)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean() * (float("inf") if (rank, step) == (1, 2) else 1.0)
        backward(loss, optimizer)
        optimizer.step()
    torch.save(
        [model.module.state_dict(), [p.detach() for p in amp.master_params(optimizer)], amp.state_dict()],
        f"{folder}/{rank}",
    )
    torch.distributed.barrier()
    # once in some fifty runs a process aborted on its way out: "terminate called without an active exception"
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("level", DYNAMIC)
def test_processes_agree(level, tmp_path):
    torch.multiprocessing.start_processes(train, (level, str(tmp_path)), nprocs=2, start_method="forkserver")
    one, two = (torch.load(tmp_path / str(rank)) for rank in range(2))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert one[2] == {"loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 1}}
    assert all(torch.isfinite(p).all() for p in one[1])
