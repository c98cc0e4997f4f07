"""What a module of the user's own may bring with it: weights that no layout takes, an optimizer without a learning rate."""

from types import SimpleNamespace

import pytest
import torch
from few_steps import FEW_STEPS
from omegaconf import OmegaConf
from own_projects import UNet
from refused import assert_refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mpx.training.own_speed import OwnSpeed

MODULE = """
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

class Signs(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.01 * parameter.grad.sign()
        return loss

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.flat, self.deep = nn.Conv2d(1, 2, 3), nn.Conv3d(1, 1, 2)

    def training_step(self, x, index):
        return self.deep(self.flat(x)[:, None]).square().mean()

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 1, 6, 6), 4)

    def configure_optimizers(self):
        return Signs(self.parameters())
"""


@pytest.fixture
def words(tmp_path, monkeypatch):
    (tmp_path / "signs_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return ["module._target_=signs_net.Net", "precision=fp32", *FEW_STEPS, "trainer.log_every_n_steps=1"]


def test_an_optimizer_without_a_learning_rate(train, words):
    ran = train(*words)
    assert ran.code == 0, ran.err
    scalars = EventAccumulator(str(ran.folder)).Reload().Tags()["scalars"]
    assert "train/loss" in scalars
    assert "train/lr" not in scalars


def test_weights_that_cannot_be_channels_last(train, words):
    ran = train(*words, "trainer.channels_last=true")
    assert_refused(ran, "error: trainer.channels_last=true is not possible: it is for weights of four dimensions")
    assert ran.err.endswith("Use trainer.channels_last=auto.\n")


class Viewing(UNet):
    def forward(self, x):
        return self.down(x).view(len(x), -1)


@pytest.mark.parametrize(
    ("module", "example", "laid_out", "why"),
    [
        (UNet, True, True, "cuDNN's Tensor Core and batch norm kernels read it"),
        (UNet, False, False, "the module has no example_input_array to try it on; trainer.channels_last=true uses it untried"),
        (Viewing, True, False, "the model cannot take it (view size is not compatible"),
    ],
)
def test_what_speed_auto_does_on_a_gpu(module, example, laid_out, why):
    """The decision needs no GPU: it tries the module where its weights are."""
    module = module()
    if not example:
        module.example_input_array = None
    auto = dict.fromkeys(("compile", "cuda_graphs", "benchmark", "channels_last"), "auto")
    speed = OwnSpeed("auto", OmegaConf.create(auto))
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cuda")))
    speed.on_fit_start(trainer, module)
    filters = [weight for weight in module.parameters() if weight.dim() == 4 and weight.shape[1] > 1 and weight.shape[2] > 1]
    assert {weight.is_contiguous(memory_format=torch.channels_last) for weight in filters} <= {laid_out}
    choice = speed._choose(module, torch.device("cuda"), 2000)
    assert (choice.channels_last, choice.benchmark, choice.cuda_graphs, choice.compile) == (laid_out, True, False, "off")
    assert choice.why["channels_last"].startswith(why)
    own = "a module's own training_step may do other things at each step"
    assert (choice.why["cuda_graphs"], choice.why["compile"]) == (own, f"{own}; call torch.compile in it")
