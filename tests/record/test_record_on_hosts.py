"""mpx.Record on several hosts: two processes of one training, each with the identity of another machine."""

import hashlib
import json
import os
import warnings
from pathlib import Path

import torch.distributed as dist
from processes import on_ranks
from pytorch_lightning.demos.boring_classes import BoringModel
from silent import silent_trainer

import mpx
from mpx.measure import environment

BOOTED = [b"drawn by the first machine", b"drawn by the second machine"]


def _trains(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")  # Lightning's hints about workers
    # to Lightning, somebody else has started these processes
    os.environ |= {"LOCAL_RANK": "0", "NODE_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    environment.BOOT = Path(folder, f"boot{rank}")
    environment.BOOT.write_bytes(BOOTED[rank])
    record = mpx.Record(study="two", model="net", data="noise", output_dir=folder)
    silent_trainer(devices=1, num_nodes=2, strategy="ddp", max_steps=2, callbacks=[record]).fit(BoringModel())
    dist.destroy_process_group()


def test_the_record_has_all_hosts_and_their_number(tmp_path):
    on_ranks(2, _trains, str(tmp_path))
    (file,) = tmp_path.glob("two/*/seed0/result.json")
    hosts = (hashlib.sha256(drawn).hexdigest()[:6] for drawn in BOOTED)
    record = json.loads(file.read_text())
    assert record["environment"]["host"] == "-".join(sorted(hosts))
    assert (record["config"]["trainer"]["devices"], record["config"]["trainer"]["num_nodes"]) == (1, 2)
