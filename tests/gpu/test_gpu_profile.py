"""On a CUDA device: profile=true names the bottleneck of runs that have a known one, and sees kernels, Tensor Cores and replayed steps."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STEPS = ["profile=true", "trainer.max_epochs=100", "trainer.max_steps=60", "trainer.check_val_every_n_epoch=100", "trainer.progress=off"]
STEPS += ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
TINY = ["model=resnet20", "data.batch_size=8"]
PRODUCTS = ["model=mlp", "model.widths=[8192,8192,8192]", "data=synthetic", "data.shape=[1,64,64]", "data.classes=10"]
PRODUCTS += ["data.samples=65536", "data.batch_size=8192", "optimizer.lr=1e-4"]
ELEMENTWISE = """
from torch import nn
class Net(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.first, self.last = nn.Conv2d(in_channels, 64, 1), nn.Linear(64, num_classes)
    def forward(self, x):
        x = self.first(x)
        for _ in range(20):
            x = (x * 1.01 + 0.01).relu()
        return self.last(x.mean((2, 3)))
"""


@pytest.fixture
def profiled(train):
    def run(*choice):
        ran = train(*STEPS, *choice)
        assert ran.code == 0, ran.err
        assert (ran.folder / "trace.json.gz").exists()
        print(ran.out)
        return ran.record["profile"] | {"speed": ran.record["speed"]}

    return run


@pytest.mark.alone
def test_many_small_kernels_are_launch_overhead(profiled):
    found = profiled(*TINY, "speed=plain", "precision=amp")
    assert found["bound"] == "launch overhead", found["sentence"]
    assert found["launches"] > 200
    assert found["step_ms"] == pytest.approx(found["speed"]["step_ms_p50"], rel=0.5)


def test_replayed_steps_are_profiled_as_they_are(profiled):
    found = profiled(*TINY, "trainer.cuda_graphs=true", "trainer.compile=off", "precision=amp")
    assert found["launches"] > 100
    assert found["speed"]["chosen"]["graph"]["given_up"] is None


@pytest.mark.alone
@pytest.mark.parametrize("speed", [["speed=plain"], ["trainer.cuda_graphs=true", "trainer.compile=off"]])
@pytest.mark.parametrize(("precision", "fmt"), [("fp32", "fp32"), ("tf32", "tf32"), ("amp", "fp16"), ("amp_bf16", "bf16")])
def test_large_products_are_arithmetic(profiled, precision, fmt, speed):
    found = profiled(*PRODUCTS, *speed, f"precision={precision}")
    assert found["bound"] == "arithmetic", found["sentence"]
    largest = found["operations"][0]
    assert (largest["format"], largest["tensor_cores"]) == (fmt, precision != "fp32")


@pytest.mark.alone
def test_elementwise_layers_are_memory(profiled, tmp_path, monkeypatch):
    (tmp_path / "elementwise_net.py").write_text(ELEMENTWISE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    choice = ["model=custom", "model._target_=elementwise_net.Net", "data=synthetic", "data.shape=[3,64,64]", "data.classes=10"]
    found = profiled(*choice, "data.samples=2048", "data.batch_size=256", "optimizer.lr=1e-4", "speed=plain", "precision=amp")
    assert found["bound"] == "memory", found["sentence"]


def test_compiled_steps_are_listed_by_kernel(profiled):
    found = profiled(*TINY, "data.batch_size=64", "trainer.cuda_graphs=true", "trainer.compile=default", "precision=amp")
    assert any(row["operation"].startswith("triton_") for row in found["operations"])


@pytest.mark.parametrize(
    "choice", [["model=lstm", "precision=amp"], ["sparsity=2of4", "precision=o2"], ["model=bert_small", "precision=fp8"]]
)
def test_other_models_and_modes(profiled, choice):
    found = profiled(*choice, "data.batch_size=64")
    assert found["bound"] is not None
    assert found["operations"]
