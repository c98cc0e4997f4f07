"""On a CUDA device: every format, backend and kind of weights serves what was trained, and 2:4 layers run on sparse Tensor Cores."""

import json

import pytest
import torch
from started import start
from torch import nn

from mpx.deploy import measure
from mpx.deploy.__main__ import main
from mpx.deploy.linear import WAYS, Linear2of4
from mpx.deploy.sparse import layers, sparse_model
from mpx.precision.formats import FORMATS
from mpx.sparsity.patterns import mask_2of4

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not torch.backends.cusparselt.is_available(), reason="needs cuSPARSELt"),
]
TEXT = ["data=synthetic", "data.kind=text", "data.shape=[32]", "data.classes=4", "data.vocab_size=200", "data.samples=1024"]
RUNS = {
    "resnet20": ["model=resnet20"],
    "mlp": ["model=mlp", "model.widths=[256,256]", "sparsity=2of4"],
    "lstm": ["model=lstm", *TEXT],
    "bert": ["model=bert_small", *TEXT, "sparsity=2of4", "optimizer.lr=1e-4"],
}
STEPS = [
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=1",
    "trainer.progress=off",
    "trainer.warmup_steps=0",
]
BATCHES = "batch=[1,7,50]"
TOLERANCE = {"fp32": 1e-5, "tf32": 8 * 2**-10, "fp16": 8 * 2**-10, "bf16": 8 * 2**-7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name) -> a run's folder, trained once for this file."""
    from mpx.train import main as train

    root, made = tmp_path_factory.mktemp("runs"), {}

    def run(name):
        if name not in made:
            done = start(train, root, *RUNS[name], *STEPS, f"study={name}")
            assert done.code == 0, done.err
            (made[name],) = (path.parent for path in (root / "outputs" / name).rglob("result.json"))
        return made[name]

    return run


@pytest.fixture
def deploy(folder, tmp_path, monkeypatch):
    """deploy(name, *overrides) -> the row that it wrote, and its output."""
    monkeypatch.setattr(measure, "BUDGET_S", 0.05)

    def run(name, *overrides):
        done = start(main, tmp_path, f'run="{folder(name)}"', *overrides)
        assert done.code == 0, done.err
        return json.loads((folder(name) / "deploy.json").read_text())["rows"][-1], done

    return run


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("backend", ["eager", "graph", "compile"])
@pytest.mark.parametrize("name", RUNS)
def test_what_is_served_is_what_was_trained(deploy, folder, name, backend, fmt):
    row, _ = deploy(name, f"format={fmt}", f"backend={backend}", BATCHES, "weights=dense")
    assert (row["backend"], row["device"], row["sparse_layers"]) == (backend, "cuda", [])
    assert [at["batch"] for at in row["speed"]] == [1, 7, 50]
    assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])
    tested = json.loads((folder(name) / "result.json").read_text())["metrics"]
    assert row["metrics"]["test/loss"] == pytest.approx(tested["test/loss"], rel=1e-4 if fmt == "fp32" else 0.03)
    assert row["memory"]["peak_allocated_gib"] > 0


@pytest.mark.parametrize("backend", ["eager", "graph", "compile"])
@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize(("name", "sparse"), [("mlp", 2), ("bert", 25)])
def test_2of4_is_served_sparse(deploy, folder, name, sparse, fmt, backend):
    """mlp: all but the last layer. bert_small: the six layers of each of four blocks, and the pooler."""
    row, done = deploy(name, f"format={fmt}", f"backend={backend}", BATCHES, "weights=2of4")
    assert len(row["sparse_layers"]) == sparse
    assert "Is 2:4 worth it?" in done.out
    assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])
    tested = json.loads((folder(name) / "result.json").read_text())["metrics"]
    assert row["metrics"]["test/loss"] == pytest.approx(tested["test/loss"], rel=0.03)
    dense, _ = deploy(name, f"format={fmt}", f"backend={backend}", BATCHES, "weights=dense")
    assert row["weights_gib"] < dense["weights_gib"]


def test_auto_takes_a_backend_and_says_what_pays(deploy):
    row, done = deploy("bert", "format=bf16", "batch=[1,64]")
    assert row["backend"] in ("graph", "compile")
    measured = [layer for layer in row["layers"] if layer["way"]]
    assert len(measured) == 25
    assert set(row["sparse_layers"]) <= {layer["name"] for layer in measured if layer["sparse_ms"] < layer["dense_ms"]}
    assert "Is 2:4 worth it?" in done.out


def test_a_dense_run_has_no_2of4(folder, tmp_path):
    done = start(main, tmp_path, f'run="{folder("resnet20")}"', "format=fp16", "weights=2of4", BATCHES)
    assert done.code == 2
    assert "PyTorch has sparse kernels for Linear, not for Conv2d" in done.err


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_a_layer_is_the_dense_one(dtype, way, bias):
    dense = nn.Linear(128, 256, bias, device="cuda", dtype=dtype)
    dense.weight.mul_(mask_2of4(dense.weight))
    made = Linear2of4(dense, way)
    for shape in ((1, 128), (64, 128), (3, 5, 128)):
        x = torch.randn(shape, device="cuda", dtype=dtype)
        found, expected = made(x), dense(x)
        epsilon = next(fmt.epsilon for fmt in FORMATS.values() if fmt.dtype == dtype)
        assert (found - expected).double().norm() <= 8 * epsilon * expected.double().norm()
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())


@pytest.mark.alone
@torch.no_grad()
def test_large_layers_of_bert_pay(capsys):
    """experiments/ceilings: 1.16 to 1.5 times as fast as dense for products alone. Prints what the layer with its bias gains."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1024)).to("cuda", torch.bfloat16)
    for layer in model:
        layer.weight.mul_(mask_2of4(layer.weight))
    x = torch.randn(32768, 1024, device="cuda", dtype=torch.bfloat16)
    table = layers(model, x, "bf16")
    with capsys.disabled():
        for layer in table:
            print(f"\n{layer.shape} {layer.way}: dense {layer.dense_ms:.4f} ms, 2:4 {layer.sparse_ms:.4f} ms")
    assert any(layer.pays for layer in table)
    made = sparse_model(model, table)
    assert ((made(x) - model(x)).double().norm() / model(x).double().norm()).item() <= 16 * 2**-7
