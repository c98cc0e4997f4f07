"""On a CUDA device: every format, backend and kind of weights serves what was trained, and 2:4 layers run on
sparse Tensor Cores.
"""

import json

import pytest
import torch
from few_steps import TEXT
from safetensors.torch import load_file
from started import start
from torch import nn
from torch.export.passes import move_to_device_pass

from mpx.deploy import algorithms, backends
from mpx.deploy.__main__ import main
from mpx.deploy.backends import relative_error
from mpx.deploy.kernels import OWN_KERNEL, dense_kernels, sparse_kernels
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.sparsity.patterns import mask_2of4

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not torch.backends.cusparselt.is_available(), reason="needs cuSPARSELt"),
]
RUNS = {
    "resnet20": ["model=resnet20"],
    "mlp": ["model=mlp", "model.widths=[256,256]", "sparsity=2of4"],
    "conv": ["model=resnet18", "sparsity=2of4"],
    "lstm": ["model=lstm", *TEXT, "model.hidden_size=64", "model.bidirectional=true", "sparsity=2of4"],
    "custom": ["model=custom", "model._target_=own_net.Net", "+model.kwargs.width=64", "sparsity=2of4"],
    "bert": ["model=bert_small", *TEXT, "sparsity=2of4", "optimizer.lr=1e-4"],
}
STEPS = [
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=1",
    "trainer.progress=off",
    "trainer.warmup_steps=0",
]
BATCHES = "batch=[1,7,64]"
TOLERANCE = {"fp32": 1e-5, "tf32": 8 * 2**-10, "fp16": 8 * 2**-10, "bf16": 8 * 2**-7, "int8": 0.2, "fp8": 0.2}


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
    monkeypatch.setattr(backends, "BUDGET_S", 0.05)

    def run(name, *overrides):
        words = ["target=own_net.Net"] if name == "custom" else []
        done = start(main, tmp_path, f'run="{folder(name)}"', *words, *overrides)
        assert done.code == 0, done.err
        return json.loads((folder(name) / "deploy.json").read_text())["rows"][-1], done

    return run


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("backend", ["eager", "graph", "compile"])
@pytest.mark.parametrize("name", RUNS)
def test_what_is_served_is_what_was_trained(deploy, folder, name, backend, fmt):
    row, _ = deploy(name, f"format={fmt}", f"backend={backend}", BATCHES, "weights=dense")
    assert (row["backend"], row["device"], row["sparse_layers"]) == (backend, "cuda", [])
    assert [at["batch"] for at in row["speed"]] == [1, 7, 64]
    assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])
    tested = json.loads((folder(name) / "result.json").read_text())["metrics"]
    assert row["metrics"]["test/loss"] == pytest.approx(
        tested["test/loss"], rel=1e-4 if fmt == "fp32" else 0.03
    )
    assert row["memory"]["peak_allocated_gib"] > 0


@pytest.mark.parametrize("backend", ["eager", "graph", "compile"])
@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize(("name", "sparse"), [("mlp", 2), ("bert", 25), ("custom", 4)])
def test_2of4_is_served_sparse(deploy, folder, name, sparse, fmt, backend):
    """mlp: all but the last layer. bert_small: the six layers of each of four blocks, and the pooler. custom:
    the feed-forward layers of two nn.TransformerEncoderLayers.
    """
    row, done = deploy(name, f"format={fmt}", f"backend={backend}", BATCHES, "weights=2of4")
    assert len(row["sparse_layers"]) == sparse
    assert "Is it worth it?" in done.out
    assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])
    tested = json.loads((folder(name) / "result.json").read_text())["metrics"]
    assert row["metrics"]["test/loss"] == pytest.approx(tested["test/loss"], rel=0.03)
    dense, _ = deploy(name, f"format={fmt}", f"backend={backend}", BATCHES, "weights=dense")
    assert row["weights_gib"] < dense["weights_gib"]


@pytest.mark.parametrize(("fmt", "weights"), [("int8", "dense"), ("int8", "2of4"), ("fp8", "dense")])
@pytest.mark.parametrize("name", ["mlp", "bert", "conv", "custom"])
def test_8_bits(deploy, folder, name, fmt, weights):
    row, _ = deploy(name, f"format={fmt}", "backend=compile", BATCHES, f"weights={weights}")
    assert row["quantised_layers"]
    assert bool(row["sparse_layers"]) == (weights == "2of4")
    assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])
    tested = json.loads((folder(name) / "result.json").read_text())["metrics"]
    assert row["metrics"]["test/accuracy"] == pytest.approx(tested["test/accuracy"], abs=0.03)


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_convolutions_are_served_sparse(deploy, fmt):
    row, _ = deploy("conv", f"format={fmt}", "backend=compile", BATCHES, "weights=2of4")
    assert any("conv" in name for name in row["sparse_layers"])
    assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])


def test_auto_takes_a_backend_and_says_what_pays(deploy):
    row, done = deploy("bert", "format=bf16", "batch=[64]")
    assert row["backend"] in ("graph", "compile")
    measured = [layer for layer in row["layers"] if any("2:4" in name for name in layer["ms"])]
    assert len(measured) == 25
    faster = {layer["name"] for layer in measured if min(layer["ms"], key=layer["ms"].get) != OWN_KERNEL}
    assert set(row["sparse_layers"]) <= faster
    assert "Is it worth it?" in done.out


@pytest.mark.parametrize(("fmt", "backend"), [("bf16", "auto"), ("int8", "graph")])
def test_each_batch_size_is_served_by_its_fastest(deploy, fmt, backend):
    """By one of the ways of the largest, with 8 bits in the same layers, whose accuracy is measured."""
    row, _ = deploy("mlp", f"format={fmt}", f"backend={backend}", "batch=[1,64]")
    assert {key: row["speed"][-1][key] for key in ("backend", "sparse_layers")} == {
        key: row[key] for key in ("backend", "sparse_layers")
    }
    for at in row["speed"]:
        if rates := at["candidates"]:
            assert max(rates, key=rates.get).split(", ")[0] == at["backend"]
        assert at["relative_error"] <= TOLERANCE[fmt]
    served = {layer["name"]: layer["served"] for layer in row["layers"]}
    assert {name for name, kernel in served.items() if "2:4" in kernel} == set(row["sparse_layers"])
    assert {name for name, kernel in served.items() if kernel.startswith("int8")} == set(
        row["quantised_layers"]
    )


LAYERS = {
    "linear": (lambda bias: nn.Linear(128, 256, bias), [(1, 128), (64, 128), (3, 5, 128)]),
    "1×1": (lambda bias: nn.Conv2d(64, 128, 1, bias=bias), [(1, 64, 5, 5), (4, 64, 8, 8)]),
    "1×1, stride 2": (lambda bias: nn.Conv2d(64, 128, 1, 2, bias=bias), [(2, 64, 7, 7)]),
    "3×3": (lambda bias: nn.Conv2d(32, 64, 3, padding=1, bias=bias), [(1, 32, 4, 4), (3, 32, 9, 7)]),
    "5×3, stride 2": (lambda bias: nn.Conv2d(32, 64, (5, 3), 2, (2, 0), bias=bias), [(3, 32, 9, 7)]),
}
ERRORS = {"fp16": 8 * 2**-10, "bf16": 8 * 2**-7, "int8": 0.05, "fp8": 0.1}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("fmt", ERRORS)
@torch.no_grad()
def test_a_layer_is_the_dense_one(fmt, name, bias):
    """By every kernel, in values and layout."""
    make, shapes = LAYERS[name]
    dense = make(bias).to(
        "cuda", torch.float16 if fmt == "fp16" else torch.bfloat16, memory_format=torch.channels_last
    )
    dense.weight.mul_(mask_2of4(dense.weight))
    two = [] if fmt == "fp8" else sparse_kernels(dense, fmt, torch.device("cuda"))[0]
    assert two or fmt == "fp8"
    for kernel in (*dense_kernels(dense, fmt)[0], *two):
        for shape in shapes:
            x = torch.randn(shape, device="cuda").to(dense.weight.dtype)
            x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
            found, expected = kernel.serve(dense, x.abs().max().item())(x), dense(x)
            assert (found - expected).double().norm() <= ERRORS[fmt] * expected.double().norm(), kernel
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert found.is_contiguous(
                memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format
            )
    algorithms.stop()


EXPORTS = {
    "fp32": ("safetensors", "pt2", "onnx"),
    "bf16": ("safetensors", "pt2"),
    "int8": ("safetensors", "onnx"),
    "fp8": ("safetensors",),
}


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        *((name, fmt) for name in ("mlp", "resnet20", "bert") for fmt in EXPORTS),
        ("lstm", "fp32"),
        ("lstm", "bf16"),
    ],
)
def test_exported_files(deploy, folder, name, fmt):
    """They are made on the CPU. A program moves to the GPU and computes the same there."""
    row, _ = deploy(
        name, f"format={fmt}", "backend=eager", f"export=[{','.join(EXPORTS[fmt])}]", "batch=[64]"
    )
    files = {kind: folder(name) / file["file"] for kind, file in row["exports"].items()}
    assert files.keys() == set(EXPORTS[fmt])
    assert all(file.parent.name == f"{fmt}-auto-cuda" for file in files.values())
    found = load_file(files["safetensors"])
    assert {key.removesuffix(".weight_scale") for key in found if key.endswith(".weight_scale")} == set(
        row["quantised_layers"]
    )
    assert all(f"{layer}.input_scale" in found for layer in row["quantised_layers"])
    if "pt2" in files:
        program = torch.export.load(files["pt2"])
        x = program.example_inputs[0][0].repeat_interleave(4, dim=0)[:7]
        expected = program.module()(x)
        moved = move_to_device_pass(program, "cuda").module()
        with float32_matmuls(MODES["fp32"], emulate=False):  # PyTorch's convolutions are TF32 by default
            assert relative_error(moved(x.cuda()).cpu(), expected) <= TOLERANCE[fmt]
        assert row["exports"]["pt2"]["relative_error"] <= TOLERANCE[fmt]
    if "onnx" in files:
        tested = row["exports"]["onnx"]
        assert tested["relative_error"] <= TOLERANCE[fmt]
        assert tested["metrics"]["test/loss"] == pytest.approx(
            row["metrics"]["test/loss"], rel=1e-4 if fmt == "fp32" else 0.1
        )
