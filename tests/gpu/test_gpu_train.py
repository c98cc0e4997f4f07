"""On a CUDA device: every model family in every mode runs natively, in the format that the mode promises."""

import pytest
import torch
from few_steps import FEW_STEPS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("sparsity", ["dense", "2of4"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "amp_bf16"])
@pytest.mark.parametrize("model", ["resnet18", "lstm", "bert_small"])
def test_native_formats(train, model, precision, sparsity):
    ran = train(f"model={model}", f"precision={precision}", f"sparsity={sparsity}", *FEW_STEPS, "trainer.max_epochs=4")
    assert ran.code == 0, ran.err
    record = ran.record
    assert record["precision"]["emulated"] is False
    for kind, calls in record["precision"]["observed"].items():
        assert set(calls) == {record["precision"]["formats"][kind]}, f"{kind}: {calls}"
    assert record["memory"]["peak_allocated_gib"] > 0
    assert record["speed"]["step_ms_p50"] > 0
    assert record["sparsity"]["verified"] is (True if sparsity == "2of4" else None)


def test_out_of_memory_is_one_line(train):
    """16,384 samples of 512 tokens: 16 GiB for each of dozens of activations."""
    batch = ["data=synthetic", "data.kind=text", "data.shape=[512]", "data.classes=2", "data.samples=16384", "data.batch_size=16384"]
    ran = train("model=bert_small", *batch, *FEW_STEPS)
    assert ran.code == 1
    assert "error: out of memory with data.batch_size=16384: lower it" in ran.err
    assert "Traceback" not in ran.err


def test_emulated_fp16_on_a_gpu(train):
    ran = train("precision=amp", "precision.emulate=always", *FEW_STEPS)
    assert ran.code == 0, ran.err
    assert ran.record["precision"]["emulated"] is True
    assert set(ran.record["precision"]["observed"]["conv"]) == {"fp16"}
