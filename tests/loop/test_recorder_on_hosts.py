"""mpx.Recorder in rank 0 of two processes: it knows its own host, and from torchrun whether there are others."""

import hashlib
import os
from pathlib import Path

import torch.distributed as dist
from processes import on_ranks

import mpx
from mpx.compare.collect import collect
from mpx.compare.speed import place_of
from mpx.measure import environment

BOOTED = [b"drawn by the first machine", b"drawn by the second machine"]
FIRST = hashlib.sha256(BOOTED[0]).hexdigest()[:6]
SETTING = {"model": "net", "data": "set", "precision": "fp32", "sparsity": "dense"}


def _trains(rank, folder, seed, local_world_size):
    os.environ |= {} if local_world_size is None else {"LOCAL_WORLD_SIZE": local_world_size}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{seed}", rank=rank, world_size=2)
    environment.BOOT = Path(folder, f"boot{rank}")
    environment.BOOT.write_bytes(BOOTED[rank])
    if rank == 0:
        with mpx.Recorder(study="two", setting=SETTING | {"seed": seed}, output_dir=folder) as recorder, recorder.step(4):
            dist.barrier()
    else:
        dist.barrier()
    dist.destroy_process_group()


def test_a_run_on_hosts_that_rank_0_does_not_know_is_not_taken_for_one_on_its_own(tmp_path):
    for seed, local_world_size in enumerate(("2", "1", None)):
        on_ranks(2, _trains, str(tmp_path), seed, local_world_size)
    runs, _ = collect(tmp_path / "two")
    assert [run.environment["host"] for run in runs] == [FIRST, f"{FIRST}-unknown", f"{FIRST}-unknown"]
    one, *others = map(place_of, runs)
    assert one not in others
