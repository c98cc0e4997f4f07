"""python -m mpx.deploy on a CPU: what is served computes what was trained, what is written, and how compare
reads it.
"""

import json
import sys

import pytest
import torch
from few_steps import FEW_STEPS
from started import start

from mpx.compare.__main__ import main as compare
from mpx.compare.collect import collect
from mpx.deploy import backends, build, choose, prepare, serve
from mpx.deploy.__main__ import main
from mpx.deploy.onnx import largest_weight
from mpx.measure.exclusive import BUSY
from mpx.precision.formats import FORMATS
from mpx.precision.modes import cpu_has_bf16
from mpx.system.machine import builds_kernels

SIZES = (1, 7, 64)  # the largest leaves a smaller last batch of every test set
TOLERANCE = {"fp32": 1e-5, "bf16": 8 * FORMATS["bf16"].epsilon, "int8": 0.1 * 127 / largest_weight()}
# the compiler, which takes longest, once for each kind of layer; it compiles again for every batch size
SLOW = [
    ("bert", "compile", "bf16"),
    ("resnet", "onnx", "fp32,int8"),
    ("lstm", "eager", "fp32"),
]
CASES = [
    ("mlp", "eager", "fp32"),
    ("custom", "eager", "fp32"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
]


@pytest.mark.parametrize(("name", "backend", "formats"), CASES)
def test_what_is_served_is_what_was_trained(deploy, name, backend, formats):
    """The test set, with its smaller last batch, gives the metrics of the training; each batch size the
    outputs of FP32.
    """
    if "bf16" in formats and not cpu_has_bf16():
        pytest.skip("this CPU has no BF16 instructions")
    if backend == "compile" and not builds_kernels("cpu"):
        pytest.skip("no compiler")
    sizes = SIZES[:1] if backend == "compile" else SIZES
    done, rows = deploy(name, f"format=[{formats}]", f"batch={list(reversed(sizes))}", f"backend={backend}")
    assert done.code == 0, done.err
    tested = json.loads((deploy.folder / "result.json").read_text())["metrics"]
    for fmt, row in zip(formats.split(","), rows, strict=True):
        assert (row["format"], row["backend"]) == (fmt, backend)
        assert tuple(at["batch"] for at in row["speed"]) == sizes
        assert all(at["relative_error"] <= TOLERANCE[fmt] for at in row["speed"])
        assert row["metrics"].keys() == {key for key in tested if key.startswith("test/")}
        assert row["metrics"]["test/loss"] == pytest.approx(
            tested["test/loss"], rel=1e-5 if fmt == "fp32" else 0.03
        )
        assert row["metrics"]["test/accuracy"] == pytest.approx(
            tested["test/accuracy"], abs=1e-9 if fmt == "fp32" else 0.05
        )
    if "int8" in formats:
        assert row["quantised_layers"]
        assert row["sparse_layers"] == []
        assert f"layers that multiply INT8: {len(row['quantised_layers'])}" in done.words
        assert row["weights_gib"] < rows[0]["weights_gib"]


@pytest.mark.slow
def test_row(deploy):
    # which divide the test set, since the compiler compiles every batch size
    done, (row,) = deploy("mlp", "batch=[60,4]")
    assert (row["format"], row["weights"], row["sparse_layers"], row["device"]) == ("fp32", "auto", [], "cpu")
    assert row["backend"] in ("eager", "compile", "onnx")
    assert set(row["candidates"]) | set(row["refused"]) == {"eager", "compile", "onnx"}
    for at in row["speed"]:
        assert at["backend"] == max(at["candidates"], key=at["candidates"].get)
        assert 0 < at["latency_ms_p50"] <= at["latency_ms_p95"] <= at["latency_ms_p99"]
        assert at["serve_samples_per_s"] > 0
    assert row["serve_samples_per_s"] == row["speed"][-1]["serve_samples_per_s"]
    assert row["cpu_used_by_others"] == max(at["cpu_used_by_others"] for at in row["speed"])
    assert row["exclusive"] == (row["cpu_used_by_others"] < BUSY)
    assert row["memory"]["peak_rss_gib"] > 0
    assert row["exports"] == {}
    assert row["environment"]["torch"] == torch.__version__
    assert row["layers"] == []  # kernels are those of a GPU
    assert "dense" in done.out
    assert "written to outputs/s/setting/seed0/deploy.json" in done.words
    assert max(map(len, done.out.splitlines())) <= 120
    assert all(line.startswith("measuring ") for line in done.err.splitlines())


@pytest.fixture
def timed(monkeypatch):
    """timed(rates, wrong) -> what is measured: (batch size, backend), by `rates` in the place of a clock.

    wrong: (batch size, backend) whose outputs are not the model's.
    """

    class Calls:
        def __init__(self, model, backend, device):
            self.model, self.backend = model, backend

        def __call__(self, x):
            return self.model(x) + (0.1 if (len(x), self.backend) == self.wrong else 0)

    def run(rates, wrong=None):
        measured, Calls.wrong = [], wrong
        monkeypatch.setattr(
            backends, "lacking", lambda fmt, device: dict.fromkeys(next(iter(rates.values())))
        )
        monkeypatch.setattr(prepare, "Served", Calls)
        for module in (choose, serve):
            monkeypatch.setattr(
                module,
                "throughput",
                lambda call, x: measured.append((len(x), call.backend)) or rates[len(x)][call.backend],
            )
        return measured

    return run


def test_each_batch_size_is_served_by_its_fastest(deploy, timed, monkeypatch):
    """One after another, and nothing is measured that is not said. The largest one's choice is evaluated."""
    three = ("eager", "compile", "graph")
    rates = {
        size: dict(zip(three, found, strict=True))
        for size, found in {1: (3.0, 2, 1), 4: (2, 3.0, 1), 60: (1, 2, 3.0)}.items()
    }
    measured, evaluated = timed(rates), []
    monkeypatch.setattr(
        build.Samples,
        "evaluate",
        lambda self, call, size: evaluated.append((size, measured[-1])) or {"test/accuracy": 1.0},
    )
    done, (row,) = deploy("mlp", "weights=dense", "batch=[4,1,60]")
    fastest = {1: "eager", 4: "compile", 60: "graph"}
    assert {at["batch"]: at["backend"] for at in row["speed"]} == fastest
    assert all(
        at["serve_samples_per_s"] == 3 and at["candidates"] == rates[at["batch"]] for at in row["speed"]
    )
    assert (row["backend"], row["candidates"]) == ("graph", rates[60])
    assert measured == [(size, backend) for size in (60, 4, 1) for backend in (*three, fastest[size])]
    assert evaluated == [(60, (60, "graph"))]
    said = [line.removeprefix("measuring ").removesuffix(" …") for line in done.err.splitlines()]
    assert said[5:9] == ["eager, batch 4", "compile, batch 4", "graph, batch 4", "compile, speed at batch 4"]
    measured.clear()
    _, (row,) = deploy("mlp", "weights=dense", "batch=[4,1,60]", "backend=eager")
    assert measured == [(60, "eager"), (4, "eager"), (1, "eager")]


def test_several_ways_of_one_call(deploy, tmp_path):
    """What this CPU cannot serve is a line; the others are served, written and shown in one table."""
    deploy("mlp", "batch=[4]", "backend=eager")  # makes the folder
    (deploy.folder / "deploy.json").unlink()
    words = (
        "run=outputs/s/*/seed*",
        "accelerator=cpu",
        "format=[fp16,fp32]",
        "weights=[dense,2of4,auto]",
        "batch=[4,8]",
        "backend=eager",
    )
    done = start(main, tmp_path, *words)
    assert done.code == 1
    rows = json.loads((deploy.folder / "deploy.json").read_text())["rows"]
    assert [(row["format"], row["weights"]) for row in rows] == [("fp32", "dense"), ("fp32", "auto")]
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert errors[4:] == errors[:4]  # repeated below the table
    run = "error: run=outputs/s/setting/seed0"
    assert [line.partition(" format=")[0] for line in errors] == [run] * 8
    assert sum("most CPUs have no instructions for FP16" in line for line in errors[4:]) == 3
    assert (
        f"{run} format=fp32 weights=2of4: weights=2of4: 2:4 kernels need a CUDA device. Use "
        "weights=auto or dense."
    ) in errors
    table = done.out[done.out.rindex("served on") :]
    assert [line.split()[:4] for line in table.splitlines() if line.split()[:1] == ["fp32"]] == [
        ["fp32", "dense", "eager", size] for _ in rows for size in ("4", "8")
    ]
    assert max(map(len, done.out.splitlines())) <= 120


def test_size_of_the_weights():
    """Tied weights count once; memory behind a weight, as cuSPARSELt needs it, does not."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False))
    model[1].weight = model[0].weight
    model[0].bias.data = torch.zeros(1000)[:64]
    assert serve.size_of(model) == 4 * (64 * 64 + 64)


def test_compare_reads_a_real_row(deploy, tmp_path):
    """On a CPU its throughput counts if others used little of it."""
    _, (row,) = deploy("mlp", "weights=dense", "batch=64", "backend=eager")
    (found,), left_out = collect(tmp_path / "outputs" / "s")
    assert ([one.samples_per_s for one in found.served], left_out) == ([row["serve_samples_per_s"]], [])
    for alone, verdict in ((False, "no verdict on serving"), (True, "nothing is shown to be served faster")):
        (deploy.folder / "deploy.json").write_text(json.dumps({"rows": [row | {"exclusive": alone}]}))
        done = start(compare, tmp_path, "study=s", "control=auto")
        assert verdict in done.words.lower()
        assert "latency at batch 64, samples/s at batch 64" in done.words


@pytest.mark.slow
def test_served_with_the_averages_that_were_tested(deploy):
    """This run has trainer.ema_decay: the weights of its checkpoint are others."""
    _, (row,) = deploy("resnet", "batch=[360]", "backend=eager")
    tested = json.loads((deploy.folder / "result.json").read_text())["metrics"]["test/loss"]
    assert row["metrics"]["test/loss"] == pytest.approx(tested, rel=1e-6)
    path = deploy.folder / "checkpoints" / "last.ckpt"
    words = ["model=resnet20", "data=digits", "accelerator=cpu", "batch=[4]"]
    done = start(main, deploy.folder, *words, f'ckpt="{path}"')
    assert "is of a run with trainer.ema_decay, whose averages mpx serves. Use run=FOLDER." in done.err
    checkpoint = torch.load(path)
    path.unlink()
    ema = checkpoint["callbacks"]["Ema"]
    ema["averages"] = {name: checkpoint["state_dict"][name] for name in ema["averages"]}
    torch.save(checkpoint, path)
    _, (row,) = deploy("resnet", "batch=[360]", "backend=eager")
    assert row["metrics"]["test/loss"] != pytest.approx(tested, rel=1e-3)


@pytest.mark.slow
def test_data_of_the_users_own(train, tmp_path, monkeypatch):
    """The function is called where the user names it."""
    code = (
        "import torch\nfrom torch import nn\n\n\ndef make(size):\n    y = torch.arange(size) % 4\n"
        "    x = torch.linspace(0, 1, size * 64).view(size, 1, 8, 8) + y[:, None, None, None]\n"
        "    return (x, y), (x[:30], y[:30]), (x[:67], y[:67])\n\n\ndef Net():\n    return "
        "nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n"
    )
    (tmp_path / "their_data.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(backends, "BUDGET_S", 0.02)
    words = (
        "model=custom",
        "model._target_=their_data.Net",
        "data=custom",
        "data._target_=their_data.make",
        "+data.kwargs.size=100",
    )
    ran = train(*words, *FEW_STEPS, "trainer.limit_test_batches=1.0")
    assert ran.code == 0, ran.err
    del sys.modules["their_data"]
    words = (f'run="{ran.folder}"', "accelerator=cpu", "batch=[8]", "backend=eager")
    done = start(main, tmp_path, *words, "target=their_data.Net")
    assert done.code == 2
    assert "Confirm that by target=[their_data.Net,their_data.make]." in done.err
    assert "their_data" not in sys.modules
    done = start(main, tmp_path, *words, "target=[their_data.Net,their_data.make]")
    assert done.code == 0, done.err
    (row,) = json.loads((ran.folder / "deploy.json").read_text())["rows"]
    assert row["metrics"]["test/accuracy"] == ran.record["metrics"]["test/accuracy"]
    assert row["metrics"]["test/loss"] == pytest.approx(ran.record["metrics"]["test/loss"], rel=1e-5)
