"""mpx.Recorder in each of two processes, as a script has it that knows nothing of ranks: one record, with the
samples of both once.
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
from mpx.record import loop

STEP_S, WARMUP, STEPS = 0.02, 2, 10
BATCHES = [4, 6]  # of each rank
# of a sample: a multiplication and an addition for each weight, in the forward pass and for its gradient
FLOPS = 2 * 2 * 16 * 8
HOSTS = [hashlib.sha256(boot).hexdigest()[:6] for boot in (b"0", b"1")]


def _join(rank, folder, name="store"):
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=2)
    environment.BOOT = Path(folder, f"boot{rank}")
    environment.BOOT.write_text(str(rank))


def _loop(run, rank, steps=STEPS):
    """Rank 0 alone evaluates amid it. The last step has one sample more."""
    windows.time = clock = Clock()
    net = nn.Linear(16, 8)
    for step in range(steps):
        samples = BATCHES[rank] + (step == steps - 1)
        with run.step(samples):
            net(torch.ones(samples, 16)).sum().backward()
            clock.sleep(STEP_S if step >= WARMUP else 1.0)
            run.log({"train/loss": torch.tensor(0.5)})
        if rank == 0 and step == STEPS // 2:
            clock.sleep(5.0)
            run.metrics({"val/accuracy": 0.5})


def _recorder(folder, **setting):
    return mpx.Recorder(study="ranks", setting=SETTING | setting, output_dir=folder, warmup_steps=WARMUP)


def _result(folder, setting="net-set-fp32-dense", seed="seed0"):
    return json.loads((folder / "ranks" / setting / seed / "result.json").read_text())


def _trains_twice(rank, folder):
    """The second time, the process group has ended before the block."""
    _join(rank, folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for steps in (STEPS + 5, STEPS):
            with _recorder(folder) as run:
                _loop(run, rank, steps)
                run.metrics({"test/accuracy": 0.5})
                if steps == STEPS:
                    dist.barrier()
                    dist.destroy_process_group()
    Path(folder, f"said{rank}").write_text(said.getvalue())


def test_one_record_has_the_samples_of_all_processes_once(tmp_path):
    on_ranks(2, _trains_twice, str(tmp_path))
    for seed, timed in (("seed0", STEPS + 5 - WARMUP), ("seed0-2", STEPS - WARMUP)):
        record = _result(tmp_path, seed=seed)
        rate = (timed * sum(BATCHES) + 2) / (timed * STEP_S)
        assert (record["status"], record["speed"]["measured_steps"]) == ("completed", timed)
        assert record["speed"]["train_samples_per_s"] == pytest.approx(rate)
        assert record["speed"]["model_tflops_per_s"] == pytest.approx(rate * FLOPS / 1e12)
        assert record["config"]["trainer"]["devices"] == 2
        assert record["environment"]["host"] == "-".join(sorted(HOSTS))
    assert [bool((tmp_path / f"said{rank}").read_text()) for rank in (0, 1)] == [True, False]


def _differs(rank, folder):
    """Runs after one another in which rank 1 is not as rank 0: no Recorder, other steps."""
    loop.WAIT_S = 0.5
    _join(rank, folder)
    with Path(folder, f"said{rank}").open("w") as said, contextlib.redirect_stdout(said):
        if rank == 0:
            with _recorder(folder, case="alone") as run:
                _loop(run, rank)
        with _recorder(folder, case="steps") as run:
            _loop(run, rank, STEPS - rank)
    dist.barrier()


def test_samples_that_are_unknown(tmp_path):
    on_ranks(2, _differs, str(tmp_path))
    for case in ("alone", "steps"):
        record = _result(tmp_path, f"net-set-fp32-dense-case={case}")
        assert record["status"] == "completed"
        assert record["speed"]["step_ms_p50"] == pytest.approx(1e3 * STEP_S)
        for name in loop.RATES:
            assert (record["speed"][name], record["speed"][f"{name}_reason"]) == (None, loop.OTHERS_UNKNOWN)
    assert (tmp_path / "said0").read_text().count(f"mpx.Recorder: {loop.OTHERS_UNKNOWN}\n") == 2


def _trains_in_rank_0(rank, folder, seed, local_world_size):
    os.environ |= {} if local_world_size is None else {"LOCAL_WORLD_SIZE": local_world_size}
    loop.WAIT_S = 0.1
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
