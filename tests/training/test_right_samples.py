"""What a run keeps of its test: right or wrong for each sample, in the order of the test set."""

import base64
import json

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from mpx.data import load
from mpx.models import build


def kept(folder):
    content = json.loads((folder / "predictions.json").read_text())
    bits = np.frombuffer(base64.b64decode(content["right"]), np.uint8)
    return content, np.unpackbits(bits, count=content["samples"]).astype(bool)


def test_a_run_keeps_what_its_model_says_of_each_test_sample(train):
    ran = train("model=mlp", "trainer.max_epochs=1", "data.eval_batch_size=50")
    assert ran.code == 0, ran.err
    content, right = kept(ran.folder)
    cfg = OmegaConf.create(ran.record["config"])
    data = load(cfg.data)
    assert (content["samples"], content["test_set"]) == (360, f"{data.test.checksum:08x}")
    assert ran.record["data"]["test_set"] == content["test_set"]
    assert ran.record["data"]["train_set"] == f"{data.train.checksum:08x}"
    assert right.mean() == pytest.approx(ran.record["metrics"]["test/accuracy"], abs=1e-12)
    model = build(cfg.model, data.spec).eval()
    model.load_state_dict(
        torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    )
    everything = torch.arange(360)
    x, y = data.test.finish(*data.test.raw(everything, None), None)
    with torch.no_grad():
        assert np.array_equal(right, (model(x).argmax(1) == y).numpy())
    assert sorted(path.name for path in ran.folder.iterdir() if path.name.endswith(".part")) == []


def test_a_limited_test_keeps_its_first_samples(train):
    ran = train("model=mlp", "trainer.max_steps=1", "data.eval_batch_size=50", "trainer.limit_test_batches=2")
    assert kept(ran.folder)[0]["samples"] == 100
