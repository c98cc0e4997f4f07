"""mpx.Recorder in each of two processes, as a script has it that knows nothing of ranks: one record, with the samples of both once."""

import contextlib
import hashlib
import io
import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from made_clock import Clock
from processes import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mpx
from mpx.loop import ranks, record
from mpx.measure import environment, windows
from mpx.precision.modes import MODES
from mpx.precision.plugin import ModePrecision

STEP_S, WARMUP, STEPS = 0.02, 2, 10
SETTING = {"model": "net", "data": "set", "precision": "fp32", "sparsity": "dense", "seed": 0}
BATCHES = [4, 6]  # of each rank
FLOPS = 2 * 2 * 16 * 8  # of a sample: a multiplication and an addition for each weight, in the forward pass and for its gradient


def _join(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)


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


def _result(folder, setting="net-set-fp32-dense"):
    return json.loads((folder / "ranks" / setting / "seed0" / "result.json").read_text())


def _trains(rank, folder):
    _join(rank, folder)
    environment.BOOT = Path(folder, f"boot{rank}")
    environment.BOOT.write_text(str(rank))
    with contextlib.redirect_stdout(io.StringIO()) as said, _recorder(folder) as run:
        _loop(run, rank)
        run.metrics({"test/accuracy": 0.5})
        Path(folder, f"folder{rank}").write_text(str(run.folder))
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(rank / 5)  # rank 0 waits for the other
    Path(folder, f"said{rank}").write_text(said.getvalue())


def test_one_record_has_the_samples_of_all_processes_once(tmp_path):
    on_ranks(2, _trains, str(tmp_path))
    record, timed = _result(tmp_path), STEPS - WARMUP
    rate = (timed * sum(BATCHES) + 2) / (timed * STEP_S)
    assert (record["status"], record["speed"]["measured_steps"]) == ("completed", timed)
    assert record["speed"]["train_samples_per_s"] == pytest.approx(rate)
    assert record["speed"]["model_tflops_per_s"] == pytest.approx(rate * FLOPS / 1e12)
    assert record["config"]["data"]["batch_size"] == BATCHES[0]
    assert record["config"]["trainer"]["devices"] == 2
    assert record["environment"]["host"] == "-".join(sorted(hashlib.sha256(word).hexdigest()[:6] for word in (b"0", b"1")))
    (found,) = (tmp_path / "ranks").glob("*/*/")
    assert [(tmp_path / f"folder{rank}").read_text() for rank in (0, 1)] == [str(found)] * 2
    assert [bool((tmp_path / f"said{rank}").read_text()) for rank in (0, 1)] == [True, False]


def _trains_twice(rank, folder):
    _join(rank, folder)
    for steps in (STEPS, STEPS + 5):
        with _recorder(folder) as run:
            _loop(run, rank, steps)
            time.sleep(rank / 5)
    dist.barrier()


def test_a_second_run_of_the_same_setting(tmp_path):
    on_ranks(2, _trains_twice, str(tmp_path))
    records = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("ranks/*/*/result.json"))]
    timed = [STEPS - WARMUP, STEPS + 5 - WARMUP]
    rates = [(steps * sum(BATCHES) + 2) / (steps * STEP_S) for steps in timed]
    assert [record["speed"]["train_samples_per_s"] for record in records] == pytest.approx(rates)


def _differs(rank, folder):
    """Runs after one another in which rank 1 is not as rank 0: no Recorder, another setting, other steps, a block that ends late."""
    _join(rank, folder)
    record.WAIT_S = 0.2
    with Path(folder, f"said{rank}").open("w") as said, contextlib.redirect_stdout(said):
        if rank == 0:
            with _recorder(folder, case="alone") as run:
                _loop(run, rank)
        with _recorder(folder, case="other", seed=rank) as run:
            _loop(run, rank)
        with _recorder(folder, case="steps") as run:
            _loop(run, rank, STEPS - rank)
        with _recorder(folder, case="late") as run:
            _loop(run, rank)
            dist.barrier()
            time.sleep(rank)
    dist.barrier()


def test_samples_that_rank_0_does_not_know_are_said_to_be_unknown(tmp_path):
    on_ranks(2, _differs, str(tmp_path))
    none = "it has no mpx.Recorder of this setting. Make one in every process"
    reasons = {"alone": none, "other": none, "steps": "it timed 7 steps, and rank 0 8"}
    reasons |= {"late": "its `with` block did not end within 0.2 s after that of rank 0"}
    said = (tmp_path / "said0").read_text()
    for case, reason in reasons.items():
        record = _result(tmp_path, f"net-set-fp32-dense-case={case}")
        reason = f"the samples of rank 1 are unknown: {reason}"
        speed = record["speed"]
        assert record["status"] == "completed"
        assert speed["step_ms_p50"] == pytest.approx(1e3 * STEP_S)
        for name in ("train_samples_per_s", "model_tflops_per_s", "mfu"):
            assert (speed[name], speed[f"{name}_reason"]) == (None, reason)
        assert record["config"]["data"]["batch_size"] is None
        assert f"mpx.Recorder: {reason}\n" in said


def _shares(rank, folder):
    _join(rank, folder)
    windows.time = clock = Clock()
    with _recorder(folder) as run:
        run.continued(3)
        for _ in range(STEPS):
            with run.step(4 if rank == 0 else 0):
                nn.Linear(16, 8)(torch.ones(4, 16))
                clock.sleep(STEP_S)
    assert run.steps == STEPS + 3
    dist.barrier()


def test_processes_that_share_samples(tmp_path):
    """As with tensor parallelism: rank 0 counts them, and its operations are only a part of the model's."""
    on_ranks(2, _shares, str(tmp_path))
    record = _result(tmp_path)
    assert record["speed"]["train_samples_per_s"] == pytest.approx(4 / STEP_S)
    assert (record["speed"]["model_tflops_per_s"], record["speed"]["mfu"]) == (None, None)
    assert "several processes share samples" in record["speed"]["mfu_reason"]
    assert record["environment"]["resumed_from_steps"] == [3]


def _shards(rank, folder):
    _join(rank, folder)
    net = fully_shard(nn.Linear(16, 8), mesh=init_device_mesh("cpu", (2,)))
    for part in (
        lambda: mpx.Recorder(study="ranks", setting=SETTING, output_dir=folder, model=net),
        lambda: ModePrecision(MODES["bf16_true"], torch.device("cpu"), emulate=False).convert_module(net),
    ):
        with pytest.raises(mpx.UserError, match=r"^the model's weights are sharded over processes \(FSDP\), .* Use DDP"):
            part()
    dist.barrier()


def test_a_sharded_model_is_refused(tmp_path):
    on_ranks(2, _shards, str(tmp_path))


def _fails(rank, folder):
    _join(rank, folder)
    with contextlib.suppress(OSError), _recorder(folder) as run:
        _loop(run, rank)
        raise OSError("no sample")
    assert run.ended
    dist.barrier()


def test_an_error_in_every_rank(tmp_path):
    on_ranks(2, _fails, str(tmp_path))
    record = _result(tmp_path)
    assert (record["status"], record["error"]) == ("failed", "OSError: no sample")


def _joins_late(rank, folder):
    found = rf"was rank 0 of 1 when .*, and is rank {rank} of 2 now\. Call torch\.distributed\.init_process_group"
    with pytest.raises(mpx.UserError, match=found):
        _joins_within(_recorder(folder), rank, folder)
    dist.barrier()


def _joins_within(run, rank, folder):
    with run:
        _join(rank, folder)
        _loop(run, rank)


def test_a_process_group_that_comes_after_the_recorder(tmp_path):
    """Without torchrun, each process would take itself for the only one and write a record."""
    on_ranks(2, _joins_late, str(tmp_path))
    assert not list(tmp_path.glob("ranks/*/*"))


def _waits(rank, folder):
    _join(rank, folder)
    ranks.WAIT_S = 0.1
    if rank == 1:
        run = _recorder(folder).__enter__()
        with pytest.raises(mpx.UserError, match=r"rank 0 has none of this setting, so there is no folder\. Make one in every process"):
            run.folder  # noqa: B018
    dist.barrier()


def test_a_folder_that_rank_0_does_not_have(tmp_path):
    on_ranks(2, _waits, str(tmp_path))


def _begins(rank, folder):
    os.environ |= {"TORCHELASTIC_RUN_ID": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with _recorder(folder) as run:
        if rank == 1:
            with pytest.raises(mpx.UserError, match=r"rank 0 tells the folder once torch\.distributed\.init_process_group has"):
                run.folder  # noqa: B018
        _join(rank, folder)
        _loop(run, rank)
        Path(folder, f"folder{rank}").write_text(str(run.folder))
    dist.barrier()


def test_torchrun_tells_the_rank_before_there_is_a_process_group(tmp_path):
    on_ranks(2, _begins, str(tmp_path))
    assert _result(tmp_path)["speed"]["train_samples_per_s"] > 0
    assert (tmp_path / "folder0").read_text() == (tmp_path / "folder1").read_text()
