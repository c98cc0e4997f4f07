"""On two CUDA devices, with NCCL: a sharded model trains as a whole one, in less memory, and its checkpoint loads into the plain model."""

import json
import shutil
import subprocess
import sys

import pytest
import sharded_net
import torch

from mpx.sparsity.patterns import is_2of4

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

TWO = ["trainer.strategy=fsdp", "trainer.devices=2", "data.batch_size=24"]


def trained(folder, study, *words):
    """(result.json, last.ckpt) of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "mpx.train", *words, f"study={study}", "trainer.warmup_steps=2"],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (run,) = (folder / "outputs" / study).glob("*/seed0")
    return json.loads((run / "result.json").read_text()), torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("precision", ["fp32", "amp", "amp_bf16"])
def test_two_gpus_train_as_one(tmp_path, precision):
    """Sums of a few gradients round differently, and a few close calls go the other way: in 16 bits some, in FP32 hardly any."""
    shutil.copy(sharded_net.__file__, tmp_path)
    words = ["model=custom", "model._target_=sharded_net.Net", "optimizer=adamw", f"precision={precision}", "sparsity=2of4"]
    words += ["trainer.max_epochs=4", "trainer.gradient_clip_val=0.5", "trainer.ema_decay=0.9", "data.augment=none"]
    two, ours = trained(tmp_path, "two", *words, *TWO)
    one, theirs = trained(tmp_path, "one", *words, "data.batch_size=48", "trainer.devices=1")
    assert two["sparsity"]["verified"] is True
    assert two["metrics"]["test/loss"] == pytest.approx(one["metrics"]["test/loss"], rel=0.02 if precision == "fp32" else 0.1)
    for part in ("optimizer_steps", "skipped_steps"):
        assert two["precision"][part] == one["precision"][part]
    assert two["speed"]["chosen"]["cuda_graphs"] is False
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()

    for name, value in ours["state_dict"].items() if precision == "fp32" else ():
        assert torch.isclose(value, theirs["state_dict"][name], atol=1e-3).float().mean() >= 0.99, name
    pruned, masks = (saved["callbacks"]["Pruning"]["masks"] for saved in (ours, theirs))
    assert pruned.keys() == masks.keys()
    for name, mask in pruned.items():
        assert (mask == masks[name]).float().mean() >= (0.999 if precision == "fp32" else 0.9), name
        assert is_2of4(ours["state_dict"][name])
        assert not ours["state_dict"][name][~mask].any()
    plain = sharded_net.Net((1, 8, 8), 10)
    plain.load_state_dict(ours["state_dict"])
    assert all(value.device.type == "cpu" for value in ours["state_dict"].values())


def test_resumed_on_two_gpus(tmp_path):
    """SGD, which is not fused here, with a loss scale that starts so high that steps are skipped."""
    words = ["model=mlp", "precision=amp", "precision.loss_scale.initial=16777216", "optimizer=sgd", "sparsity=2of4", *TWO]
    _, saved = trained(tmp_path, "first", *words, "trainer.max_epochs=2")
    path = next((tmp_path / "outputs" / "first").glob("*/seed0/checkpoints/last.ckpt"))
    record, _ = trained(tmp_path, "second", *words, "trainer.max_epochs=4", f'ckpt_path="{path}"')
    assert record["environment"]["resumed_from_steps"] == [saved["global_step"]]
    assert record["precision"]["skipped_steps"] > 0
    assert record["sparsity"]["verified"] is True


def test_half_the_memory(tmp_path):
    """50 M weights in 13 blocks, in FP32 with AdamW: 0.75 GiB of weights, gradients and moments, of which each device holds half."""
    words = [
        "model=mlp",
        "model.widths=[2048,2048,2048,2048,2048,2048,2048,2048,2048,2048,2048,2048,2048]",
        "trainer.max_steps=6",
        "trainer.devices=2",
        "precision=amp_bf16",
    ]
    peaks = [trained(tmp_path, way, *words, f"trainer.strategy={way}")[0]["memory"]["peak_allocated_gib"] for way in ("fsdp", "ddp")]
    assert peaks[0] < 0.75 * peaks[1]
