"""Channel permutation on a CUDA device: the search and the models lie there, and the models compute the same
afterwards.
"""

import copy

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch.nn.functional import cross_entropy

from mpx.data.spec import Spec
from mpx.models import build
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.sparsity.permutation import permute_model
from mpx.train import CONF
from mpx.training.optimizer import build_optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
IMAGES, TOKENS = Spec("image", (3, 64, 64), 10), Spec("text", (32,), 2, 1000, 0)
CASES = {
    "resnet20": (["data=synthetic"], IMAGES),
    "bert_small": (["data=synthetic", "data.kind=text"], TOKENS),
    "lstm": (["data=synthetic", "data.kind=text"], TOKENS),
}


@pytest.fixture(autouse=True)
def ieee():
    with float32_matmuls(MODES["fp32"], emulate=False):
        yield


def made(name):
    """(model, its optimizer, one batch, its targets) on the device, after two steps, so that the optimizer
    has a state.
    """
    choice, spec = CASES[name]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", [f"model={name}", *choice, "optimizer=adamw"])
    torch.manual_seed(0)
    model = build(cfg.model, spec).to(DEVICE)
    if spec.kind == "image":
        model.to(memory_format=torch.channels_last)
    x = (
        torch.randn(4, *spec.shape)
        if spec.kind == "image"
        else torch.randint(1, spec.vocab_size, (4, *spec.shape))
    )
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
    assert any(layer["permuted"] for layer in report.layers)
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
