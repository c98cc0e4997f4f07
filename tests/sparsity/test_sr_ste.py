"""SR-STE step by step: what the optimizer sees, against the formulas of the papers."""

import pytest
import pytorch_lightning as pl
import torch
from silent import silent_trainer
from torch import nn

from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.lightning_sparsity import Sparsity
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM, is_2of4, mask_2of4
from mpx.sparsity.recipes import Plan, SrSte

DECAY = 0.01


class Steps:
    """A layer trained by SR-STE on given gradients; `dense` are its weights as the optimizer has them."""

    def __init__(self, make, start=0, decay=DECAY, every=None):
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 8, bias=False)
        self.weight = self.layer.weight
        self.optimizer = make([self.weight])
        self.recipe = SrSte(Plan(start, start, every), decay=decay)
        self.masks = Masks(weights(self.layer, NofM(2, 4), Rules()), NofM(2, 4), remember=True)
        self.done = 0

    @property
    def dense(self):
        return self.weight.detach() + self.masks.stash.get("weight", 0)

    def step(self, gradient, skipped=None):
        self.recipe.before_forward(self.done, self.masks, [self.optimizer])
        self.weight.grad = gradient.clone()
        active = self.masks.active
        if active:
            assert is_2of4(self.weight)
            self.recipe.on_gradients(self.masks, self.optimizer)
        if skipped is None or not skipped:
            self.optimizer.step()
        self.done += 1
        if active:
            self.recipe.after_step(self.done, self.masks, [self.optimizer], skipped)
            assert is_2of4(self.weight)


def gradients(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 16, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_as_published(momentum):
    """The gradient of the sparse weights, plus λ (1 - mask) w, moves the dense ones."""
    steps = Steps(lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum))
    dense, buffer = steps.dense.clone(), torch.zeros(8, 16)
    for gradient in gradients(5):
        total = gradient + DECAY * dense * ~mask_2of4(dense)
        buffer = momentum * buffer + total
        dense = dense - 0.1 * buffer
        steps.step(gradient)
        assert torch.allclose(steps.dense, dense, atol=1e-6)
        assert torch.equal(steps.weight.detach() != 0, mask_2of4(dense))


@pytest.mark.parametrize("fused", [False, True])
def test_adams_moments_see_the_gradient_alone(fused):
    rate = torch.tensor(0.1) if fused else 0.1
    steps = Steps(lambda p: torch.optim.AdamW(p, lr=rate, weight_decay=0.0, fused=fused))
    plain = nn.Parameter(torch.zeros(8, 16))
    reference = torch.optim.AdamW([plain], lr=0.1, weight_decay=0.0)
    dense = steps.dense.clone()
    for gradient in gradients(4):
        before, plain.grad = plain.detach().clone(), gradient.clone()
        reference.step()
        dense = dense + (plain.detach() - before) - 0.1 * DECAY * dense * ~mask_2of4(dense)
        steps.step(gradient)
        assert torch.allclose(steps.dense, dense, atol=1e-6)
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(steps.optimizer.state[steps.weight][key], reference.state[plain][key])


def test_adams_variance_is_held_after_a_dense_phase():
    """Its value without bias stays what the dense phase found, however large later gradients are."""
    groups = lambda p: [{"params": [nn.Parameter(torch.zeros(1))]}, {"params": p, "betas": (0.9, 0.99)}]  # noqa: E731
    steps = Steps(lambda p: torch.optim.AdamW(groups(p), lr=0.01, fused=True), start=3)
    small, large = gradients(3), [100 * gradient for gradient in gradients(6)]
    for gradient in small:
        steps.step(gradient)
    state = steps.optimizer.state[steps.weight]
    found = state["exp_avg_sq"] / (1 - 0.99**3)
    for number, gradient in enumerate(large, 4):
        steps.step(gradient)
        assert torch.allclose(state["exp_avg_sq"] / (1 - 0.99**number), found, rtol=1e-4)
    assert "weight" in steps.recipe.state_dict()["variances"]


def test_a_weight_that_saw_no_gradient_in_the_dense_phase_moves_as_under_adam():
    """Its held second moment would be 0, and the momentum of its first gradient, divided by that, 10 million times the learning rate."""
    steps = Steps(lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0), start=3, decay=0.0)
    plain = nn.Parameter(steps.dense.clone())
    reference = torch.optim.AdamW([plain], lr=0.01, weight_decay=0.0)
    for number, gradient in enumerate(gradients(8)):
        gradient[0] *= number == 4
        steps.step(gradient)
        plain.grad = gradient
        reference.step()
    assert torch.allclose(steps.dense[0], plain[0], atol=1e-6)
    assert not torch.allclose(steps.dense[1:], plain[1:], atol=1e-3)  # whose second moment is held


def test_a_skipped_step_changes_nothing():
    for make in (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)):
        steps = Steps(make)
        steps.step(gradients(1)[0])
        dense = steps.dense.clone()
        steps.step(torch.full((8, 16), float("inf")), skipped=torch.tensor(True))
        assert torch.equal(steps.dense, dense)


def test_masks_every_so_often():
    steps = Steps(lambda p: torch.optim.SGD(p, lr=1.0), every=3)
    found = []
    for gradient in gradients(7):
        steps.step(gradient)
        found.append(steps.masks.masks["weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    assert torch.equal(found[2], found[4])
    assert not torch.equal(found[4], found[5])


def test_several_groups_have_their_own_rates():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.Linear(16, 8, bias=False))
    optimizer = torch.optim.AdamW([{"params": [model[0].weight], "lr": 0.1}, {"params": [model[1].weight], "lr": 0.0}], weight_decay=0.0)
    recipe = SrSte(Plan(0, 0, None), decay=DECAY)
    masks = Masks(weights(model, NofM(2, 4), Rules()), NofM(2, 4), remember=True)
    recipe.before_forward(0, masks, [optimizer])
    before = {name: value.clone() for name, value in masks.stash.items()}
    for layer in model:
        layer.weight.grad = torch.zeros(8, 16)
    recipe.on_gradients(masks, optimizer)
    optimizer.step()
    recipe.after_step(1, masks, [optimizer], None)
    assert torch.allclose(masks.stash["0.weight"], before["0.weight"] * (1 - 0.1 * DECAY))
    assert torch.equal(masks.stash["1.weight"], before["1.weight"])


class InTurn(pl.LightningModule):
    """Two layers, each with its own optimizer, which a batch steps in turn."""

    def __init__(self, make):
        super().__init__()
        self.automatic_optimization = False
        self.make, self.layers = make, nn.ModuleList(nn.Linear(16, 8, bias=False) for _ in range(2))

    def training_step(self, batch, index):
        for layer, optimizer in zip(self.layers, self.optimizers(), strict=True):
            assert all(is_2of4(one.weight) for one in self.layers)  # between two steps, too
            optimizer.zero_grad()
            self.manual_backward(layer(batch).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [self.make(layer.parameters()) for layer in self.layers]


@pytest.mark.filterwarnings("ignore")  # Lightning's own hints
@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.01, fused=True)], ids=["SGD", "AdamW"]
)
def test_optimizers_that_a_batch_steps_in_turn(make):
    """Each layer is trained as if it were alone."""
    torch.manual_seed(0)
    module, batches = InTurn(make), [torch.randn(4, 16) for _ in range(5)]
    dense = [layer.weight.detach().clone() for layer in module.layers]
    pruning = Sparsity(recipe="sr_ste", start=0.0, decay=DECAY)
    silent_trainer(callbacks=[pruning]).fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    for number, begun in enumerate(dense):
        alone = Steps(make)
        with torch.no_grad():
            alone.weight.copy_(begun)
        alone.recipe.before_forward(0, alone.masks, [alone.optimizer])
        for batch in batches:
            (gradient,) = torch.autograd.grad(alone.layer(batch).square().mean(), [alone.weight])
            alone.step(gradient)
        found = module.layers[number].weight.detach() + pruning.masks.stash[f"layers.{number}.weight"]
        torch.testing.assert_close(found, alone.dense)
