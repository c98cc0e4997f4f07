"""mpx.Recorder on a GPU: the same throughput as synchronising by hand, formats by PyTorch's switches, memory
of the device.
"""

import json
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mpx

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
SETTING = {"model": "net", "data": "set", "precision": "fp32", "sparsity": "dense", "seed": 0}
STEPS, WARMUP, BATCH = 60, 10, 4096


def loop(net, optimizer, x):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@needs_gpu
@pytest.mark.alone
def test_throughput_is_that_of_the_wall_clock(tmp_path):
    net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    optimizer, x = torch.optim.SGD(net.parameters(), lr=1e-3), torch.randn(BATCH, 2048, device="cuda")
    with mpx.Recorder(setting=SETTING, model=net, output_dir=tmp_path, warmup_steps=WARMUP) as recorder:
        for step in range(STEPS):
            if step == WARMUP:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            with recorder.step(BATCH):
                recorder.log({"train/loss": loop(net, optimizer, x)})
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        time.sleep(1)
        recorder.metrics({"test/accuracy": 0.5})
    record = json.loads((recorder.folder / "result.json").read_text())
    assert record["speed"]["train_samples_per_s"] == pytest.approx(
        (STEPS - WARMUP) * BATCH / seconds, rel=0.02
    )
    assert record["speed"]["step_ms_p50"] == pytest.approx(1e3 * seconds / (STEPS - WARMUP), rel=0.1)
    assert record["speed"]["exclusive"] is not False
    assert 0.1 < record["speed"]["mfu"] <= 1
    assert record["memory"]["peak_allocated_gib"] > 8 * 2048 * 2048 * 4 / 2**30


@needs_gpu
def test_steps_do_not_wait_for_the_device(tmp_path):
    """Neither a step nor a logged tensor synchronises."""
    net = nn.Linear(64, 64).cuda()
    optimizer, x = torch.optim.SGD(net.parameters(), lr=1e-3), torch.randn(64, 64, device="cuda")
    with mpx.Recorder(setting=SETTING, model=net, output_dir=tmp_path, warmup_steps=2) as recorder:
        for step in range(6):
            torch.cuda.set_sync_debug_mode("error" if step >= 3 else "default")
            try:
                with recorder.step(64):
                    recorder.log({"train/loss": loop(net, optimizer, x)})
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert recorder.record["speed"]["measured_steps"] == 4


SAMPLES = [4, 6]  # of a batch, by rank


def _on_one_of_two(rank, folder):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net = DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[rank])
    optimizer, x = torch.optim.SGD(net.parameters(), lr=1e-3), torch.randn(SAMPLES[rank], 64, device="cuda")
    with mpx.Recorder(setting=SETTING, model=net, output_dir=folder, warmup_steps=WARMUP) as recorder:
        for step in range(STEPS):
            if step == WARMUP:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            with recorder.step(SAMPLES[rank]):
                recorder.log({"train/loss": loop(net, optimizer, x)})
                time.sleep(0.01)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        recorder.metrics({"test/accuracy": 0.5})
    if rank == 0:
        Path(folder, "seen.json").write_text(json.dumps({"seconds": seconds, "folder": str(recorder.folder)}))
    dist.destroy_process_group()


@needs_two
def test_one_record_of_two_gpus(tmp_path):
    on_ranks(2, _on_one_of_two, str(tmp_path))
    seen = json.loads((tmp_path / "seen.json").read_text())
    record = json.loads((Path(seen["folder"]) / "result.json").read_text())
    assert (record["status"], record["config"]["trainer"]["devices"]) == ("completed", 2)
    assert record["speed"]["measured_steps"] == STEPS - WARMUP
    assert record["speed"]["train_samples_per_s"] == pytest.approx(
        (STEPS - WARMUP) * sum(SAMPLES) / seen["seconds"], rel=0.05
    )
    assert [str(path.parent) for path in tmp_path.rglob("result.json")] == [seen["folder"]]
