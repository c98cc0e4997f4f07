"""SR-STE step by step: what the optimizer sees, against the formulas of the papers."""

import pytest
import torch
from torch import nn

from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM, is_2of4, mask_2of4
from mpx.sparsity.recipes import Plan, SrSte

DECAY = 0.01


class Steps:
    """A layer trained by SR-STE on given gradients; `dense` are its weights as the optimizer has them."""

    def __init__(self, make, start=0, decay=DECAY):
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 8, bias=False)
        self.weight = self.layer.weight
        self.optimizer = make([self.weight])
        self.recipe = SrSte(Plan(start, start), decay=decay)
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


def test_a_skipped_step_changes_nothing():
    for make in (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)):
        steps = Steps(make)
        steps.step(gradients(1)[0])
        dense = steps.dense.clone()
        steps.step(torch.full((8, 16), float("inf")), skipped=torch.tensor(True))
        assert torch.equal(steps.dense, dense)
