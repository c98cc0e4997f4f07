"""What counts as an optimizer step, and which gradients a step divides by the loss scale."""

import pytest
import torch
from silent import silent_trainer
from torch import nn
from ways_to_step import BATCHES, REFUSED, Configured, Fit, trained

import mpx
from mpx.errors import UserError
from mpx.precision.modes import MODES

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("mode", ["fp32", "amp"])
@pytest.mark.parametrize(
    ("way", "steps"), [("no loss", BATCHES // 2), ("in a hook", BATCHES), ("of the input", BATCHES)]
)
def test_a_step_is_one_that_had_gradients(way, steps, mode):
    weight, counted = trained(way, mode)
    exact, _ = trained(way, "fp32")
    torch.testing.assert_close(weight, exact, rtol=0.01, atol=0.005)
    assert counted == steps


@pytest.mark.parametrize(("way", "said"), REFUSED)
def test_gradients_of_another_scale_are_refused_in_one_line(way, said):
    with pytest.raises(UserError, match=said):
        trained(way, "amp")
    backward = torch.autograd.backward
    trained(way, "fp32")  # which scales nothing
    assert torch.autograd.backward is backward


def test_an_optimizer_steps_as_it_likes_when_the_training_is_over():
    class Unfinished(Fit):
        def training_step(self, batch, index):
            self.manual_backward(self.layer(batch).sum())

    module = Unfinished("manual")
    trainer = silent_trainer(plugins=mpx.Precision("amp"))
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4))
    before = module.layer.weight.detach().clone()
    trainer.optimizers[0].step()
    assert not torch.equal(module.layer.weight, before)


@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.scaled])
def test_lbfgs_and_a_loss_scale_are_refused_in_one_line(mode, monkeypatch):
    monkeypatch.setattr(Fit, "configure_optimizers", lambda self: torch.optim.LBFGS(self.parameters()))
    with pytest.raises(UserError, match=f"precision={mode} with LBFGS, which .* Use precision=amp_bf16"):
        trained("plain", mode)


class NeedsClosure(torch.optim.AdamW):
    """calls: how often a step computes the loss."""

    def __init__(self, parameters, calls):
        super().__init__(parameters, lr=0.01)
        self.calls = calls

    def step(self, closure):
        losses = [closure() for _ in range(self.calls)]
        super().step()
        return losses[-1]


@pytest.mark.parametrize("mode", ["fp32", "amp", "fp16_true"])
def test_an_optimizer_that_asks_for_a_closure_trains(mode, monkeypatch):
    monkeypatch.setattr(Fit, "configure_optimizers", lambda self: NeedsClosure(self.parameters(), calls=1))
    weight, counted = trained("plain", mode)
    exact, _ = trained("plain", "fp32")
    torch.testing.assert_close(weight.float(), exact, rtol=0.02, atol=0.01)
    assert counted == BATCHES


def test_an_optimizer_that_computes_the_loss_twice_is_refused_where_the_loss_is_scaled(monkeypatch):
    monkeypatch.setattr(Fit, "configure_optimizers", lambda self: NeedsClosure(self.parameters(), calls=2))
    trained("plain", "amp_bf16")
    with pytest.raises(UserError, match="precision=amp with NeedsClosure, which computes the loss several"):
        trained("plain", "amp")


@pytest.mark.parametrize(
    ("mode", "lightning", "made"),
    [
        ("tf32", "32-true", torch.float32),
        ("amp", "16-mixed", torch.float32),
        ("fp8", "bf16-mixed", torch.float32),
        ("bf16_true", "bf16-true", torch.bfloat16),
        ("fp16_true", "16-true", torch.float16),
        ("o2", "16-mixed", torch.float32),
    ],
)
def test_lightning_knows_the_format(mode, lightning, made):
    trainer = silent_trainer(plugins=mpx.Precision(mode))
    assert trainer.precision == lightning
    with trainer.init_module():
        assert nn.Linear(2, 2).weight.dtype == torch.zeros(1).dtype == made
    module = Configured()
    if mode != "o2":  # it casts weights, but no other tensor, to FP16
        trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
        assert module.layer.weight.dtype == module.mean.dtype == made
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_of_o2_are_refused_in_one_line(kind, monkeypatch):
    monkeypatch.setattr(
        Configured, "configure_model", lambda self: setattr(self, "layer", kind(8, 2, sparse=True))
    )
    with pytest.raises(UserError, match=r"precision=o2 with nn\.Embedding\(sparse=True\).* Use sparse=False"):
        silent_trainer(plugins=mpx.Precision("o2")).fit(
            Configured(), torch.utils.data.DataLoader(torch.ones(8, 4).long())
        )
