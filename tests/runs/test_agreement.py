"""What the processes of a run have in common: before an evaluation rank 0's buffers, and the steps after which they ask who must go."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from processes import on_ranks
from torch import nn

from mpx.runs import end_signal, signals
from mpx.runs.agreement import Agreement
from mpx.runs.end_signal import EndSignal


def _evaluates(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for start in (Agreement().on_validation_start, Agreement().on_test_start):
        layer = nn.BatchNorm1d(3)
        layer.running_mean.fill_(5.0 + rank)
        start(SimpleNamespace(world_size=2), layer)
        assert layer.running_mean.tolist() == [5.0] * 3
    dist.destroy_process_group()


def test_both_evaluate_with_the_running_means_of_rank_0(tmp_path):
    on_ranks(2, _evaluates, str(tmp_path / "store"))


def test_a_run_that_continues_asks_as_often_as_a_new_one(monkeypatch):
    """Steps of one second each. What an earlier process did says nothing about their pace."""
    now, asked_at = [20.0], []
    monkeypatch.setattr(end_signal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(signals, "asked", lambda: False)
    reduce = lambda tensor, reduce_op: asked_at.append(now[0]) or tensor  # noqa: E731
    trainer = SimpleNamespace(world_size=2, strategy=SimpleNamespace(root_device=torch.device("cpu"), reduce=reduce))
    ask = EndSignal().came
    for step in range(5000, 5010):
        trainer.global_step = step
        assert ask(trainer) is False
        now[0] += 1.0
    assert asked_at == [20.0 + second for second in range(10)]
