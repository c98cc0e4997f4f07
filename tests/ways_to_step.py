"""Ways in which a LightningModule comes to an optimizer step, for tests on a CPU and on a GPU."""

import pytorch_lightning as pl
import torch
from silent import silent_trainer
from torch import nn

import mpx

BATCHES = 12
REFUSED = [  # (way, the one line that a scaled mode says)
    ("backward", r"loss\.backward\(\) adds gradients that are not multiplied.* Use self\.manual_backward"),
    ("one of two", r"loss\.backward\(\) adds"),
    ("assigned", r"the gradients of SGD are not multiplied.* Use self\.manual_backward"),
    (
        "past Lightning's",
        r"SGD\.step\(\) would apply gradients that are still multiplied .* Call step\(\) "
        r"of Lightning's",
    ),
    ("past Lightning's in a hook", r"SGD\.step\(\) would apply"),
]


class Fit(pl.LightningModule):
    """A linear model that learns to sum. way: how its training step, or its hook, comes to a step."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way, self.layer, self.automatic_optimization = way, nn.Linear(4, 1), way in AUTOMATIC

    def training_step(self, batch, index):
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        if self.way == "no loss" and index % 2:
            return None
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        MANUAL[self.way](self, loss)
        (optimizer.optimizer if self.way == "past Lightning's" else optimizer).step()
        return None

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        if self.way == "in a hook":
            optimizer_closure()
            optimizer.step()
        elif self.way == "past Lightning's in a hook":
            optimizer_closure()
            optimizer.optimizer.step()
        else:
            optimizer.step(closure=optimizer_closure)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def assign(module, loss):
    for weight, gradient in zip(
        module.parameters(), torch.autograd.grad(loss, module.parameters()), strict=True
    ):
        weight.grad = gradient


def one_of_two(module, loss):
    module.manual_backward(loss, retain_graph=True)
    loss.backward()


def of_the_input(module, loss):
    """As adversarial training does: no gradient of a weight comes from the plain pass."""
    x = torch.ones(1, 4, requires_grad=True)
    x.square().sum().backward()
    module.manual_backward(loss)


AUTOMATIC = ("plain", "no loss", "in a hook", "past Lightning's in a hook")
MANUAL = {
    "manual": lambda module, loss: module.manual_backward(loss),
    "past Lightning's": lambda module, loss: module.manual_backward(loss),
    "backward": lambda module, loss: loss.backward(),
    "one of two": one_of_two,
    "assigned": assign,
    "of the input": of_the_input,
}


def trained(way, mode, **trainer):
    data = torch.randn(BATCHES * 8, 4, generator=torch.Generator().manual_seed(1))
    module, plugin = Fit(way), mpx.Precision(mode, **({"initial": 1024.0} if mode == "amp" else {}))
    silent_trainer(plugins=plugin, **trainer).fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    return module.layer.weight.detach().cpu(), plugin.record()["optimizer_steps"]


class Configured(pl.LightningModule):
    """Its configure_model makes a layer, and a tensor that is neither a weight nor a buffer."""

    def configure_model(self):
        self.layer, self.mean = nn.Linear(4, 2), torch.full((4,), 0.5)

    def training_step(self, batch, index):
        return self.layer(batch - self.mean).float().square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
