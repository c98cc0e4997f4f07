"""On a CUDA device: profile=true names the bottleneck of runs that have a known one, and sees kernels, Tensor
Cores and replayed steps.
"""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STEPS = [
    "profile=true",
    "trainer.max_epochs=100",
    "trainer.max_steps=60",
    "trainer.check_val_every_n_epoch=100",
    "trainer.progress=off",
]
STEPS += ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
TINY = ["model=resnet20", "data.batch_size=8"]
PRODUCTS = [
    "model=mlp",
    "model.widths=[8192,8192,8192]",
    "data=synthetic",
    "data.shape=[1,64,64]",
    "data.classes=10",
]
PRODUCTS += ["data.samples=65536", "data.batch_size=8192", "optimizer.lr=1e-4"]


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
@pytest.mark.parametrize(
    ("precision", "fmt"), [("fp32", "fp32"), ("tf32", "tf32"), ("amp", "fp16"), ("amp_bf16", "bf16")]
)
def test_large_products_are_arithmetic(profiled, precision, fmt, speed):
    found = profiled(*PRODUCTS, *speed, f"precision={precision}")
    assert found["bound"] == "arithmetic", found["sentence"]
    largest = found["operations"][0]
    assert (largest["format"], largest["tensor_cores"]) == (fmt, precision != "fp32")
