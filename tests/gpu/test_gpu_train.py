"""On a CUDA device: every model family in every mode runs natively, in the format that the mode promises."""

import json

import pytest
import torch
from few_steps import FEW_STEPS

from mpx.precision.modes import MODES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("sparsity", ["dense", "2of4"])
@pytest.mark.parametrize("precision", MODES)
@pytest.mark.parametrize("model", ["resnet18", "lstm", "bert_small"])
def test_native_formats(train, model, precision, sparsity):
    """Also with audit=true off, operands of another format than promised would fail the run."""
    choice = [f"model={model}", f"precision={precision}", f"sparsity={sparsity}"]
    # where AdamW's squares of small gradients vanish, and it diverges
    if model == "bert_small" and precision in ("fp16_true", "o3"):
        choice += ["optimizer=sgd", "optimizer.lr=1e-3"]
    # these layers are too small to be faster
    choice += ["precision.layers=all"] if precision == "fp8" else []
    ran = train(*choice, *FEW_STEPS, "trainer.max_epochs=4")
    assert ran.code == 0, ran.err
    record = ran.record
    assert record["precision"]["emulated"] is False
    assert set(record["precision"]["audit"]["as_promised"].values()) == {1.0}
    assert record["memory"]["peak_allocated_gib"] > 0
    assert record["speed"]["step_ms_p50"] > 0
    assert record["sparsity"]["verified"] is (True if sparsity == "2of4" else None)


@pytest.mark.parametrize("precision", ["fp32", "amp", "amp_bf16", "fp8"])
def test_audit_sees_kernels(train, precision):
    every = ["precision.layers=all"] if precision == "fp8" else []
    ran = train("model=bert_small", f"precision={precision}", *every, *FEW_STEPS, "audit=true")
    assert ran.code == 0, ran.err
    audit = ran.record["precision"]["audit"]
    assert audit["kernels_seen"] is True
    products = [row for row in audit["operations"] if row["kind"] in ("linear", "matmul")]
    assert {row["tensor_cores"] for row in products} == {precision != "fp32"}, [
        sorted(row["kernels"]) for row in products if row["tensor_cores"] is None
    ]
    assert all(row["kernels"] for row in products)
    assert set(audit["as_promised"].values()) == {1.0}
    assert "linear" in audit["as_promised"] or precision != "fp8"  # products in FP8 are a kind of their own


def test_numerics_agree_with_the_emulation(train):
    """The share of vanishing gradients, counted on FP16 products that are computed again, is that of the
    emulated ones.
    """
    few = [
        "precision=amp",
        *FEW_STEPS,
        "trainer.limit_train_batches=8",
        "numerics.every=2",
        "data.augment=none",
        "precision.loss_scale.initial=1.0",
    ]
    native, emulated = train(*few, "study=a"), train(*few, "precision.emulate=always", "study=b")
    assert (native.code, emulated.code) == (0, 0), native.err + emulated.err
    records = [json.loads((folder / "result.json").read_text()) for folder in emulated.folders]
    shares = [record["precision"]["gradient_underflow_fraction"] for record in records]
    assert shares[0] == pytest.approx(shares[1], rel=0.2)
    assert shares[0] > 0


# 16,384 samples of 512 tokens: 16 GiB for each of dozens of activations
OUT_OF_MEMORY = [
    "data=synthetic",
    "data.kind=text",
    "data.shape=[512]",
    "data.classes=2",
    "data.samples=16384",
    "data.batch_size=16384",
]


@pytest.mark.alone  # what fills the device leaves others nothing
def test_out_of_memory_is_one_line(train):
    ran = train("model=bert_small", *OUT_OF_MEMORY, *FEW_STEPS)
    assert ran.code == 1
    assert "error: out of memory with data.batch_size=16384: lower it" in ran.err
    assert "Traceback" not in ran.err


def test_a_loss_that_is_not_finite_ends_the_run(train):
    """Between replays of recorded steps, and while later steps still run."""
    ran = train(
        "model=mlp", "trainer.max_epochs=1", "optimizer=sgd", "optimizer.lr=1e30", "trainer.progress=off"
    )
    assert (ran.code, ran.record["status"]) == (3, "diverged")
    assert "the loss became infinite or NaN by step" in ran.err
