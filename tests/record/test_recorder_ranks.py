"""mpx.Recorder in each of two processes, as a script has it that knows nothing of ranks: one record, with the
samples of both.
"""

import contextlib
import hashlib
import io
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from made_clock import Clock
from processes import on_ranks
from recorded_loops import SETTING
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mpx
from mpx.compare.collect import collect
from mpx.compare.speed import place_of
from mpx.errors import UserError
from mpx.measure import environment, windows
from mpx.precision.modes import MODES
from mpx.precision.plugin import ModePrecision

STEP_S, WARMUP, STEPS, BATCH = 0.02, 2, 10, 4
# of a sample: a multiplication and an addition for each weight, in the forward pass and for its gradient
FLOPS = 2 * 2 * 16 * 8
HOSTS = [hashlib.sha256(boot).hexdigest()[:6] for boot in (b"0", b"1")]


def _join(rank, folder, name="store"):
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=2)
    environment.BOOT = Path(folder, f"boot{rank}")
    environment.BOOT.write_text(str(rank))


def _recorder(folder, **setting):
    return mpx.Recorder(study="ranks", setting=SETTING | setting, output_dir=folder, warmup_steps=WARMUP)


def _trains(rank, folder):
    """The process group ends before the block, and rank 0 alone evaluates."""
    _join(rank, folder)
    with contextlib.redirect_stdout(io.StringIO()) as said, _recorder(folder) as run:
        windows.time = clock = Clock()
        net = nn.Linear(16, 8)
        for step in range(STEPS):
            with run.step(BATCH):
                net(torch.ones(BATCH, 16)).sum().backward()
                clock.sleep(STEP_S if step >= WARMUP else 1.0)
                run.log({"train/loss": torch.tensor(0.5)})
            if rank == 0 and step == STEPS // 2:
                clock.sleep(5.0)
                run.metrics({"val/accuracy": 0.5})
        run.metrics({"test/accuracy": 0.5})
        dist.barrier()
        dist.destroy_process_group()
    Path(folder, f"said{rank}").write_text(said.getvalue())


def test_one_record_has_the_samples_of_all_processes(tmp_path):
    on_ranks(2, _trains, str(tmp_path))
    record = json.loads((tmp_path / "ranks" / "net-set-fp32-dense" / "seed0" / "result.json").read_text())
    rate = 2 * BATCH / STEP_S
    assert (record["status"], record["speed"]["measured_steps"]) == ("completed", STEPS - WARMUP)
    assert record["speed"]["train_samples_per_s"] == pytest.approx(rate)
    assert record["speed"]["model_tflops_per_s"] == pytest.approx(rate * FLOPS / 1e12)
    assert record["config"]["trainer"]["devices"] == 2
    assert [bool((tmp_path / f"said{rank}").read_text()) for rank in (0, 1)] == [True, False]


def _trains_in_rank_0(rank, folder, seed, local_world_size):
    os.environ |= {} if local_world_size is None else {"LOCAL_WORLD_SIZE": local_world_size}
    _join(rank, folder, f"store{seed}")
    if rank == 0:
        with (
            mpx.Recorder(study="two", setting=SETTING | {"seed": seed}, output_dir=folder) as run,
            run.step(4),
        ):
            pass
    dist.barrier()
    dist.destroy_process_group()


def test_a_run_on_hosts_that_rank_0_does_not_know_is_not_taken_for_one_on_its_own(tmp_path):
    for seed, local_world_size in enumerate(("2", "1", None)):
        on_ranks(2, _trains_in_rank_0, str(tmp_path), seed, local_world_size)
    runs, _ = collect(tmp_path / "two")
    assert [run.environment["host"] for run in runs] == [
        HOSTS[0],
        f"{HOSTS[0]}-unknown",
        f"{HOSTS[0]}-unknown",
    ]
    one, *others = map(place_of, runs)
    assert one not in others


def _shards(rank, folder):
    _join(rank, folder)
    net = fully_shard(nn.Linear(16, 8), mesh=init_device_mesh("cpu", (2,)))
    for part in (
        lambda: mpx.Recorder(study="ranks", setting=SETTING, output_dir=folder, model=net),
        lambda: ModePrecision(MODES["bf16_true"], torch.device("cpu"), emulate=False).convert_module(net),
    ):
        with pytest.raises(
            UserError,
            match=r"^the model's weights are sharded over processes \(FSDP\), .* "
            r"Use DDP",
        ):
            part()
    dist.barrier()


def test_a_sharded_model_is_refused(tmp_path):
    on_ranks(2, _shards, str(tmp_path))


def test_a_process_of_torchrun_that_has_not_joined_is_refused(tmp_path, monkeypatch):
    for name, value in {
        "TORCHELASTIC_RUN_ID": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(
            UserError,
            match=r"call torch\.distributed\.init_process_group before the first "
            r"step",
        ),
        _recorder(tmp_path) as run,
    ):
        run.log({"train/loss": 1.0})
    assert list(tmp_path.iterdir()) == []
