"""The callbacks in transformers.Trainer in two processes with what torchrun tells each: the script of one
process, unchanged.
"""

import json
import socket

import pytest
from processes import Fork

SCRIPT = """
import sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
import mpx
from mpx.compat.transformers import RecorderCallback, SparsityCallback
from mpx.measure.windows import Windows

Windows.seconds = property(lambda self: (self.read(), 10.0)[1])
words = torch.randint(1, 20, (80, 8))
data = [{"input_ids": row.tolist(), "labels": int(row[0] < 10)} for row in words]
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))
pruning = SparsityCallback("2of4")
setting = {"model": "tiny_bert", "data": "words", "precision": "fp32", "sparsity": "2of4", "seed": 0}
with mpx.Recorder(study="hf", setting=setting, model=model, warmup_steps=1) as recorder:
    args = TrainingArguments("trainer", max_steps=8, use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True, save_strategy="no")
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=data, callbacks=[pruning, RecorderCallback(recorder, pruning)])
    trainer.train()
    trainer.evaluate(data, metric_key_prefix="test")
trainer.evaluate(data)
torch.distributed.destroy_process_group()  # without it, Gloo's threads sometimes abort the exit
"""


@pytest.mark.slow
def test_a_script_of_one_process_in_two(tmp_path):
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(one.getsockname()[1])}
    told |= {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        Fork(folder=tmp_path, script=tmp_path / "script.py", env=told | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
        # each without the seconds that PyTorch's import takes; tests/training/test_nodes.py has torchrun
        # itself
    ]
    for rank in ranks:
        assert rank.wait() == 0, rank.err
    (file,) = tmp_path.glob("outputs/hf/*/*/result.json")
    record = json.loads(file.read_text())
    timed = 8 - 2 * 1  # a warm-up at the start, one after the pruning
    assert record["speed"]["measured_steps"] == timed
    assert record["speed"]["train_samples_per_s"] * 10 == timed * 8 * 2
    assert record["config"] | {"data": None} == {
        "loop": "own",
        "study": "hf",
        "data": None,
        "trainer": {"devices": 2},
    }
    assert record["config"]["data"]["batch_size"] == 8
    assert "unknown" not in record["environment"]["host"]
    assert record["sparsity"]["verified"]
    assert set(record["metrics"]) == {"test/loss"}
    for line in ("completed, recorded in", "so it records no val/loss"):
        assert [rank.out.count(line) for rank in ranks] == [1, 0]
