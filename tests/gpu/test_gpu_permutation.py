"""Channel permutation on a CUDA device: the search and the models lie there, and the models compute the same afterwards."""

import copy

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch.nn.functional import cross_entropy

from mpx.models import build
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.sparsity.permutation import permute_model
from mpx.sparsity.permutation.search import efficacy, on_cpu, search
from mpx.spec import Spec
from mpx.train import CONF
from mpx.training.optimizer import build_optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
IMAGES, TOKENS = Spec("image", (3, 64, 64), 10), Spec("text", (32,), 2, 1000, 0)
CASES = {
    "resnet20": (["data=synthetic"], IMAGES),
    "resnet50": (["data=synthetic"], IMAGES),
    "bert_small": (["data=synthetic", "data.kind=text"], TOKENS),
    "lstm": (["data=synthetic", "data.kind=text"], TOKENS),
}


@pytest.fixture(autouse=True)
def ieee():
    with float32_matmuls(MODES["fp32"], emulate=False):
        yield


def made(name):
    """(model, its optimizer, one batch, its targets) on the device, after two steps, so that the optimizer has a state."""
    choice, spec = CASES[name]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", [f"model={name}", *choice, "optimizer=adamw"])
    torch.manual_seed(0)
    model = build(cfg.model, spec).to(DEVICE)
    if spec.kind == "image":
        model.to(memory_format=torch.channels_last)
    x = torch.randn(4, *spec.shape) if spec.kind == "image" else torch.randint(1, spec.vocab_size, (4, *spec.shape))
    trained = model, build_optimizer(model, cfg.optimizer), x.to(DEVICE), torch.arange(4, device=DEVICE) % 2
    for _ in range(2):
        step(*trained)
    return trained


def step(model, optimizer, x, y):
    model.eval()  # no dropout; cuDNN's LSTM alone wants training mode for a backward pass
    for layer in model.modules():
        layer.training = isinstance(layer, torch.nn.LSTM)
    optimizer.zero_grad()
    cross_entropy(model(x).float(), y).backward()
    optimizer.step()
    model.eval()


def error(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_outputs_stay(name):
    model, optimizer, x, _ = made(name)
    with torch.no_grad():
        before = model(x)
        report = permute_model(model, x, optimizer=optimizer)
        after = model(x)
    assert report.reason is None
    assert any(layer.permuted for layer in report.layers)
    assert report.kept_after > report.kept_before
    assert error(after, before) < 1e-5
    assert all(tensor.device.type == DEVICE for tensor in model.state_dict().values())


@pytest.mark.parametrize("name", ["resnet20", "bert_small"])
def test_training_goes_on_as_it_would_have(name):
    """The fused optimizer's state lies on the device and moves along with the channels."""
    model, optimizer, x, y = made(name)
    other, unmoved = copy.deepcopy((model, optimizer))  # together, so that the copy steps the copy
    assert permute_model(model, x, optimizer=optimizer).reason is None
    for one in ((model, optimizer), (other, unmoved)):
        step(*one, x, y)
    with torch.no_grad():
        assert error(model(x), other(x)) < 1e-3  # Adam turns rounding of tiny gradients into steps


def test_search_on_the_device():
    np.random.seed(1)
    matrix = torch.from_numpy(np.random.rand(128, 64)).float()
    found, again = search(matrix.to(DEVICE), steps=1000), search(matrix.to(DEVICE), steps=1000)
    assert torch.equal(found.order, again.order)
    assert found.order.device.type == "cpu"
    assert torch.equal(found.order, search(matrix, steps=1000).order)  # small steps are the CPU's, so the order is
    assert found.order.sort().values.equal(torch.arange(64))
    assert efficacy(matrix.to(DEVICE), found.order) == pytest.approx(efficacy(matrix, found.order))
    assert efficacy(matrix, found.order) > 0.355  # apex's optimize_stripe_groups,8,0
    assert found.before == pytest.approx(search(matrix, steps=1).before)


def test_large_steps_on_the_device():
    matrix = torch.randn(4096, 128, generator=torch.Generator().manual_seed(0))
    assert not on_cpu(*matrix.shape)
    found = search(matrix.to(DEVICE), steps=30)
    assert found.order.sort().values.equal(torch.arange(128))
    assert efficacy(matrix, found.order) == pytest.approx(efficacy(matrix, search(matrix, steps=30).order), rel=0.2)
    assert found.after > found.before


def test_all_orders_of_few_columns_on_the_device():
    matrix = torch.randn(100_000, 16, generator=torch.Generator().manual_seed(0))
    assert not on_cpu(*matrix.shape)
    found = search(matrix.to(DEVICE))
    assert found.after == pytest.approx(search(matrix).after)
    assert found.after > found.before


def test_drawn_rows_on_the_device():
    """The work does not pay for a step over all rows; the order found is that of a CPU, since the rows drawn are few."""
    matrix = torch.randn(65_536, 128, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 2, 128)
    found = search(matrix.to(DEVICE), work=3e6)
    assert found.steps == 4
    assert found.order.equal(search(matrix, work=3e6).order)
    assert found.after > found.before


def test_half_precision_weights():
    matrix = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.bfloat16)
    found = search(matrix, steps=50)
    assert found.after > found.before
