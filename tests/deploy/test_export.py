"""What export= writes loads in a fresh process without mpx, and computes there what was served."""

import json
import subprocess
import sys

import numpy as np
import onnx as onnx_files
import pytest
import torch
from documents import blocks
from full_disk import full_disk
from onnx import numpy_helper
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from mpx.deploy import onnx
from mpx.deploy.backends import relative_error
from mpx.deploy.build import Samples, of_run
from mpx.deploy.export import File, weights_file, write
from mpx.deploy.onnx import largest_weight
from mpx.errors import UserError
from mpx.precision.formats import FORMATS
from mpx.precision.modes import cpu_has_bf16
from mpx.settings.choices import install

SAMPLES, SIZES = 150, (1, 7, 64)  # the last batch of 7, and of 64, is a smaller one
TOLERANCE = {"fp32": 1e-5, "bf16": 8 * FORMATS["bf16"].epsilon}
OTHERS = [("lstm", "fp32"), ("bert", "bf16")]
PROGRAM = """
import torch
call, x = torch.export.load("model.pt2").module(), torch.load("x.pt")
outs = [torch.cat([call(part) for part in x.split(size)]) for size in (1, 7, 64)]
"""
GRAPH = """
import numpy, onnxruntime
x = numpy.load("x.npy")
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
for size in (1, 7, 64):
    parts = [session.run(["logits"], {"x": x[at : at + size]})[0] for at in range(0, len(x), size)]
    numpy.save(f"out{size}.npy", numpy.concatenate(parts))
"""
WEIGHTS = """
from safetensors.torch import load_file
from torch.nn.functional import linear, relu
w, x = load_file("model.safetensors"), x.flatten(1)
for layer in (0, 3, 6):
    x = linear(relu(x) if layer else x, w[f"layers.{layer}.weight"], w[f"layers.{layer}.bias"])
outs.append(x)
"""
SAVE = 'torch.save(outs, "out.pt")\n'
USES = {  # of what the code in the card of the MLP's run loads
    "safetensors": "assert weights['layers.0.weight'].shape == (64, 64)",
    "pt2": "assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)",
    "onnx": "import numpy as np\nassert session.run(['logits'], {'x': np.zeros((3, 1, 8, 8), "
    "np.float32)})[0].shape == (3, 10)",
}


def alone(folder, program, *absent):
    """Run it in a process of its own, in which `absent` cannot be imported."""
    # without gc, a third faster
    block = f"import gc, sys; gc.disable(); sys.modules.update(dict.fromkeys({absent!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}{program}gc.freeze()\n"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def by_the_card(run):
    """A program that loads each exported file by the code in card.md, and uses it. It is started in the
    files' folder.
    """
    (code,) = blocks("python", [run / "card.md"])
    assert all(f"model.{kind}" in code for kind in USES)
    uses = "\n".join(USES.values())
    return f"import os\nos.chdir('../..')\nexec({f'{code}{uses}'!r}, {{}})\n"


@pytest.fixture
def tested(deploy):
    """tested() -> the deployed run's model in FP32, and the inputs and labels of its test set."""

    def load():
        record = json.loads((deploy.folder / "result.json").read_text())
        found = of_run(deploy.folder, record["config"], None)
        samples = Samples(found.data.test, found.data.spec, record["config"]["data"], torch.device("cpu"))
        x, y = zip(*samples.batches(50), strict=True)
        return found.model, torch.cat(x), torch.cat(y)

    return load


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fmt"), [("mlp", "fp32"), *OTHERS])
def test_files_compute_without_mpx_what_was_trained(deploy, tested, fmt, name):
    if fmt == "bf16" and not cpu_has_bf16():
        pytest.skip("no BF16 instructions")
    kinds = ["safetensors", "pt2", *(["onnx"] if fmt == "fp32" else [])]
    _, (row,) = deploy(name, f"format={fmt}", f"export=[{','.join(kinds)}]", "batch=[1,50]", "backend=eager")
    folder = deploy.folder / "served" / f"{fmt}-auto-cpu"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"model.{kind}" for kind in kinds)
    assert row["exports"].keys() == set(kinds)
    for kind, file in row["exports"].items():
        assert file["bytes"] == (deploy.folder / file["file"]).stat().st_size
        assert file["file"] == f"served/{fmt}-auto-cpu/model.{kind}"
    model, x, _ = tested()
    x = x[:SAMPLES]
    expected = model(x)
    given = x.bfloat16() if fmt == "bf16" and x.is_floating_point() else x
    torch.save(given, folder / "x.pt")
    alone(
        folder,
        PROGRAM + (WEIGHTS + SAVE + by_the_card(deploy.folder) if name == "mlp" else SAVE),
        "mpx",
        "transformers",
    )
    outs = torch.load(folder / "out.pt")
    if "onnx" in kinds:
        np.save(folder / "x.npy", x.numpy())
        alone(folder, GRAPH, "mpx", "torch")
        outs += [torch.from_numpy(np.load(folder / f"out{size}.npy")) for size in SIZES]
    assert all(relative_error(out, expected) <= TOLERANCE[fmt] for out in outs)
    assert all(
        file["relative_error"] <= TOLERANCE[fmt]
        for file in row["exports"].values()
        if "relative_error" in file
    )
    model.load_state_dict(load_file(folder / "model.safetensors"))  # the names of the trained model
    assert relative_error(model(x), expected) <= TOLERANCE[fmt]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "bert", "lstm"])
def test_int8_graph_has_the_accuracy_of_deploy_json(deploy, tested, name):
    """By ONNX Runtime alone. Scales of texts depend on the batch, so that it is that of deploy.json."""
    _, (row,) = deploy(name, "format=int8", "export=[safetensors,onnx]", "batch=[64]")
    folder = deploy.folder / "served" / "int8-auto-cpu"
    model, x, y = tested()
    np.save(folder / "x.npy", x.numpy())
    alone(folder, GRAPH, "mpx", "torch")
    out = torch.from_numpy(np.load(folder / "out64.npy"))
    accuracy = (out.argmax(-1) == y).double().mean().item()
    found = row["exports"]["onnx"]
    assert found["metrics"] == row["metrics"]
    assert row["weights_gib"] * 2**30 == (folder / "model.onnx").stat().st_size
    trained = json.loads((deploy.folder / "result.json").read_text())["metrics"]
    assert accuracy == pytest.approx(trained["test/accuracy"], abs=0.05)
    # among which ONNX Runtime divides an LSTM's batch, and finds a scale for each part
    threads = name == "lstm"
    expected = model(x)
    assert accuracy == pytest.approx(found["metrics"]["test/accuracy"], abs=0.002 if threads else 1e-6)
    assert found["relative_error"] == pytest.approx(relative_error(out[:64], expected[:64]), rel=0.1)
    assert 1e-4 < found["relative_error"] <= 0.1 * 127 / largest_weight()
    if name == "mlp":
        same_weights(folder)


def test_a_file_that_a_format_cannot_have_is_left_out_and_said(deploy, tmp_path):
    words = ("format=[fp32,int8]", "export=[safetensors,pt2]", "batch=[4]")
    done, _ = deploy("mlp", *words)
    assert done.code == 1
    fp32, int8 = json.loads((deploy.folder / "deploy.json").read_text())["rows"]
    assert (fp32["exports"].keys(), fp32["exports_refused"]) == ({"safetensors", "pt2"}, {})
    assert (int8["exports"].keys(), int8["exports_refused"].keys()) == ({"safetensors"}, {"pt2"})
    why = "it can hold fp32, tf32, fp16, bf16, not int8"
    assert f"not exported: pt2 ({why})" in done.words
    assert done.err.splitlines()[-1] == (
        f"error: run=outputs/s/setting/seed0 format=int8 weights=auto: export=pt2 is not possible: {why}"
    )


def same_weights(folder):
    """Those of the safetensors file are those that ONNX Runtime multiplies."""
    content, found = (folder / "model.onnx").read_bytes(), load_file(folder / "model.safetensors")
    theirs = {
        part.name: numpy_helper.to_array(part)
        for part in onnx_files.load_model_from_string(content).graph.initializer
    }
    layers = [key.removesuffix(".weight") for key, value in found.items() if value.dtype == torch.int8]
    assert len(layers) == len(onnx.quantised_nodes(content))
    for layer in layers:
        values, scale = theirs[f"{layer}.weight_quantized"], theirs[f"{layer}.weight_scale"]
        # they divide in another order
        assert np.abs(found[f"{layer}.weight"].numpy().astype(int) - values).max() <= 1
        np.testing.assert_allclose(found[f"{layer}.weight_scale"], scale, rtol=1e-5)
    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert (metadata["number_format"], metadata["format"]) == ("int8", "pt")
    assert json.loads(metadata["model_settings"])["family"] in ("mlp", "resnet")
    assert "LAYER.weight of int8, one scale for each output" in metadata["tensors"]


@pytest.mark.parametrize(
    ("fmt", "dtype", "step"), [("int8", torch.int8, 1 / 254), ("fp8", torch.float8_e4m3fn, 2**-4)]
)
def test_weights_of_8_bits_by_gpu_kernels(tmp_path, fmt, dtype, step):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 4)).bfloat16()
    made = weights_file(model, fmt, {"0": 2.0, "2": 3.0}, {"model": {}})
    (tmp_path / "m.safetensors").write_bytes(made.content)
    found = load_file(tmp_path / "m.safetensors")
    assert found["0.bias"].dtype == torch.bfloat16
    for name, largest in (("0", 2.0), ("2", 3.0)):
        assert found[f"{name}.weight"].dtype == dtype
        scale = found[f"{name}.weight_scale"].view(-1, *[1] * (model[int(name)].weight.dim() - 1))
        weight = model[int(name)].weight.float()
        assert (
            (found[f"{name}.weight"].float() * scale - weight).abs().max() <= 1.01 * step * weight.abs().max()
        ).item()
        assert found[f"{name}.input_scale"].item() == pytest.approx(largest / {"int8": 127, "fp8": 448}[fmt])


@pytest.mark.parametrize("earlier", [True, False])
def test_no_room_leaves_what_was_there(tmp_path, earlier):
    if earlier:
        write(tmp_path, "fp32-auto-cpu", {"pt2": File(b"old")})
    before = list(tmp_path.rglob("*"))
    message = r": cannot write served/fp32-auto-cpu there \(File too large\)\. Make room, or allow it\."
    with full_disk(4096), pytest.raises(UserError, match=message):
        write(tmp_path, "fp32-auto-cpu", {"onnx": File(b"small"), "pt2": File(bytes(5000))})
    assert list(tmp_path.rglob("*")) == before


def test_packages_that_are_missing(deploy, monkeypatch):
    monkeypatch.setattr(
        onnx.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else object()
    )
    done, _ = deploy("mlp", "export=[pt2,onnx]", "batch=[4]", "backend=eager")
    assert done.code == 2
    assert done.err == (
        f"error: export=onnx: onnxruntime not installed; {install('deploy')} brings them. "
        "Install them, or leave it out.\n"
    )
