"""Two processes hold the rows of tensors, and agree on what any of them finds in its own."""

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks
from torch import nn

from mpx.precision.scaling import LossScale
from mpx.shards import agree, gathered, is_sharded, local, not_finite, sharded_as, whole
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM, mask_2of4
from mpx.training.fsdp import shard


def test_ordinary_tensors_pass():
    tensor, flag = torch.ones(3, 4), torch.zeros(())
    assert not is_sharded(tensor)
    assert all(change(tensor) is tensor for change in (local, whole, gathered))
    assert sharded_as(tensor, torch.zeros(3, 4)) is tensor
    agree(flag, on=tensor)
    assert flag == 0


@pytest.mark.slow
def test_two_processes(tmp_path):
    on_ranks(2, _as_rank, str(tmp_path / "store"))


def _as_rank(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    full = nn.Linear(16, 9, bias=False)  # 5 rows for the first process, 4 for the second
    model = nn.Sequential(nn.Linear(16, 9, bias=False))
    shard(model, [], "cpu")
    weight = model[0].weight
    with torch.no_grad():
        local(weight).copy_(local(sharded_as(full.weight, weight)))
    assert is_sharded(weight)
    assert len(local(weight)) == (5, 4)[rank]
    assert torch.equal(whole(weight), full.weight)
    assert gathered(weight).is_meta == (rank == 1)
    _masks(rank, model, full)
    _scale(rank, model)
    dist.destroy_process_group()


def _masks(rank, model, full):
    """Every process has the mask of the whole weight, and hears of a row that breaks it, wherever that is."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.full((2, 16), rank + 1.0)).sum().backward()
    assert torch.equal(whole(model[0].weight.grad), torch.full((9, 16), 3.0))  # the mean of 2 and 4
    optimizer.step()
    masks = Masks(weights(model, NofM(2, 4), Rules(shape="any")), NofM(2, 4))
    expected = mask_2of4(whole(model[0].weight))
    masks.prune([optimizer])
    assert torch.equal(whole(masks.masks["0.weight"]), expected)
    for value in (model[0].weight, optimizer.state[model[0].weight]["exp_avg"]):
        assert torch.equal(whole(value) != 0, expected)
    masks.mask_gradients()
    assert not whole(model[0].weight.grad)[~expected].any()
    assert masks.verify([optimizer]) == []
    if rank == 1:
        local(model[0].weight).fill_(1)
    assert masks.verify() == ["0.weight"]
    state = masks.state_dict()["masks"]["0.weight"]
    assert torch.equal(state, expected) if rank == 0 else state.is_meta


def _scale(rank, model):
    """An overflow in the rows of one process skips the step of both."""
    scale, optimizer = LossScale("cpu", initial=4.0), torch.optim.AdamW(model.parameters(), fused=True)
    for overflows in (True, False):
        optimizer.zero_grad()
        scale.scale_loss(model(torch.ones(2, 16)).sum()).backward()
        gradient, before = model[0].weight.grad, local(model[0].weight).clone()
        if overflows and rank == 1:
            local(gradient)[0, 0] = torch.inf
        scale.unscale_([gradient])
        assert bool(scale.found_inf) is overflows
        scale.step(optimizer)
        scale.update()
        assert torch.equal(local(model[0].weight), before) is overflows
    assert (int(scale.skipped), scale.scale.item()) == (1, 2.0)


def test_a_weight_without_values_is_not_taken_for_nan():
    """At the end of a run, a question that a weight cannot answer must not cost the record."""
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2, device="meta"), nn.Linear(2, 2))
    assert not_finite(model) is None
    nn.init.constant_(model[2].weight, float("inf"))
    assert not_finite(model) == "2.weight"
