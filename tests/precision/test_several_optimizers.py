"""A manual optimization with two optimizers scales, skips and adjusts as a hand-written loop with
torch.amp.GradScaler.
"""

import pytest
import pytorch_lightning as pl
import torch
from silent import silent_trainer
from torch import nn

import mpx
from mpx.errors import UserError
from mpx.precision.modes import MODES

pytestmark = pytest.mark.filterwarnings("ignore")
INF = float("inf")
# For each batch, what multiplies the two losses. An infinite factor is an overflow of that loss's gradients
# alone.
FACTORS = [(1.0, 1.0), (INF, 1.0), (1.0, 1.0), (1.0, INF), (1.0, 1.0), (1.0, 1.0), (INF, INF), (1.0, 1.0)]
SCALE = {"initial": 1024.0, "growth_interval": 2}


class Two(pl.LightningModule):
    """backwards: at once computes both gradients before either optimizer steps; each computes one, steps, and
    then the other.
    """

    def __init__(self, backwards, clip):
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second, self.backwards, self.clip = nn.Linear(4, 2), nn.Linear(4, 2), backwards, clip
        self.scales = []

    def losses(self, batch, index):
        one, other = FACTORS[index]
        return self.first(batch).square().mean() * one, self.second(batch).square().mean() * other

    def training_step(self, batch, index):
        optimizers, losses = self.optimizers(), self.losses(batch, index)
        for optimizer in optimizers:
            optimizer.zero_grad()
        if self.backwards == "at once":
            for loss in losses:
                self.manual_backward(loss)
        for optimizer, loss in zip(optimizers, losses, strict=True):
            if self.backwards == "each":
                self.manual_backward(loss)
            if self.clip is not None:
                self.clip_gradients(optimizer, gradient_clip_val=self.clip, gradient_clip_algorithm="norm")
            optimizer.step()

    def on_train_batch_end(self, outputs, batch, index):
        scale = self.trainer.precision_plugin.loss_scale
        self.scales.append(scale and scale.scale.item())

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.first.parameters(), 0.1, momentum=0.9),
            torch.optim.Adam(self.second.parameters(), 0.01),
        ]


def batches():
    made = torch.Generator().manual_seed(1)
    return [torch.randn(3, 4, generator=made) for _ in FACTORS]


def by_hand(module):
    """The scale after each batch of the loop of PyTorch's "Working with Multiple Models, Losses, and
    Optimizers".
    """
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=SCALE["initial"], growth_interval=SCALE["growth_interval"]
    )
    optimizers, scales = module.configure_optimizers(), []
    for index, batch in enumerate(batches()):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            losses = module.losses(batch, index)
        for loss in losses:
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            if module.clip is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(
                    [p for group in optimizer.param_groups for p in group["params"]], module.clip
                )
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def trained(module, plugin, every=2):
    trainer = silent_trainer(
        plugins=plugin, callbacks=[mpx.Throughput(0), numerics := mpx.Numerics(every=every)]
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))
    return numerics


@pytest.mark.parametrize("backwards", ["at once", "each"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_as_the_loop_by_hand(backwards, clip):
    torch.manual_seed(0)
    ours, theirs = Two(backwards, clip), Two(backwards, clip)
    theirs.load_state_dict(ours.state_dict())
    plugin = mpx.Precision("amp", emulate="never", **SCALE)
    numerics = trained(ours, plugin)
    expected = by_hand(theirs)
    assert ours.scales == expected
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert plugin.record()["optimizer_steps"] == 2 * len(FACTORS) - 4
    assert plugin.skipped == 4
    assert numerics.samples == len(FACTORS)  # global_step counts both optimizers


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "o2"])
def test_every_mode_trains(mode):
    torch.manual_seed(0)
    module = Two("each", None)
    before = module.second.weight.detach().clone()
    trained(module, plugin := mpx.Precision(mode))
    assert plugin.steps == 2 * len(FACTORS)
    assert not torch.equal(module.second.weight.detach().float(), before)


def test_o2_is_refused():
    with pytest.raises(UserError, match=r"precision=o2 with manual optimization: .* Use precision=amp"):
        trained(Two("each", None), mpx.Precision("o2"))


class Clips(pl.LightningModule):
    """when: at each batch, of which every second one steps, adds up, or leaves its gradients; or in the hook
    before the step.
    """

    def __init__(self, when, automatic):
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization, self.when, self.layer = automatic, when, nn.Linear(4, 2)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        if self.when != "adds up" or index % 2 == 0:
            optimizer.zero_grad()
        self.manual_backward(loss)
        if self.when != "in the hook":
            self._clip()
        if self.when == "in the hook" or index % 2:
            optimizer.step()
        return None

    def on_before_optimizer_step(self, optimizer):
        if self.when == "in the hook":
            self._clip()

    def _clip(self):
        self.clip_gradients(self.optimizers(), gradient_clip_val=1.0, gradient_clip_algorithm="norm")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("when", "automatic"),
    [("adds up", False), ("leaves them", False), ("in the hook", False), ("in the hook", True)],
)
def test_gradients_are_unscaled_once_wherever_they_are_clipped(when, automatic):
    trained(ours := Clips(when, automatic), mpx.Precision("amp", emulate="never", **SCALE))
    trained(exact := Clips(when, automatic), mpx.Precision("fp32"))
    torch.testing.assert_close(ours.layer.weight, exact.layer.weight, rtol=0.01, atol=0.001)
