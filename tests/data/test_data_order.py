import pytest
import torch

from mpx.data.loaders import TrainLoader
from mpx.data.order import eval_batches, hold_out, stratified_order, train_steps


def test_train_order_depends_on_seed_and_epoch_only():
    first = torch.cat(train_steps(100, 10, seed=0, epoch=0))
    torch.rand(3)  # the global generator has no part in it
    assert torch.equal(first, torch.cat(train_steps(100, 10, seed=0, epoch=0)))
    assert not torch.equal(first, torch.cat(train_steps(100, 10, seed=0, epoch=1)))
    assert not torch.equal(first, torch.cat(train_steps(100, 10, seed=1, epoch=0)))
    assert sorted(first.tolist()) == list(range(100))


class Indices:
    """A reader whose batches are the numbers of their samples."""

    def batches(self, epoch, indices):
        return iter(indices)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_train_ranks_share_no_sample_and_have_equally_many_full_batches(world):
    ranks = [list(TrainLoader(Indices(), 101, 8, 0, rank, world)) for rank in range(world)]
    assert {len(batches) for batches in ranks} == {101 // world // 8}
    assert {len(batch) for batches in ranks for batch in batches} == {8}
    seen = torch.cat([batch for batches in ranks for batch in batches]).tolist()
    assert len(seen) == len(set(seen))


def test_ranks_take_turns_in_one_order():
    single = torch.cat(train_steps(64, 8, seed=0, epoch=0))
    pair = [torch.cat(list(TrainLoader(Indices(), 64, 8, 0, rank, 2))) for rank in (0, 1)]
    assert torch.equal(single, torch.stack(pair, dim=1).flatten())


@pytest.mark.parametrize("count", [17, 16, 15, 10, 4, 1])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_evaluation_sees_every_sample_once(count, world):
    ranks = [eval_batches(count, 4, rank, world) for rank in range(world)]
    seen = [i for batches in ranks for batch in batches for i in batch.tolist()]
    assert sorted(seen) == list(range(count))
    assert all(0 < len(batch) <= 4 for batches in ranks for batch in batches)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_evaluation_ranks_have_equally_many_batches(batch_size):
    for count in range(8, 60):
        ranks = [eval_batches(count, batch_size, rank, 3) for rank in range(3)]
        assert len({len(batches) for batches in ranks}) == 1
        assert sorted(torch.cat([batch for batches in ranks for batch in batches]).tolist()) == list(
            range(count)
        )


def test_every_slice_of_the_stratified_order_is_stratified():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    order = stratified_order(labels, seed=5)
    assert sorted(order.tolist()) == list(range(100))
    for start in range(0, 100, 20):
        assert torch.bincount(labels[order[start : start + 20]], minlength=3).tolist() == [12, 6, 2]
    assert not torch.equal(order, stratified_order(labels, seed=6))


def test_hold_out_takes_the_end_of_each_class():
    labels = torch.arange(40) % 4
    train, held_out = hold_out(labels, 8)
    assert held_out.tolist() == list(range(32, 40))
    assert train.tolist() == list(range(32))
