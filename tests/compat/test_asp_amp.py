"""ASP with mpx.compat.amp: masters inside the optimizer are held as well, whichever of the two came first."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP, amp


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def train(model, optimizer, factors=(1.0, 1.0, 1.0), closure=False):
    for seed, factor in enumerate(factors):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))

        def gradients(x=x, factor=factor):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), torch.arange(8)) * factor
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            return loss

        if closure:
            optimizer.step(gradients)
        else:
            gradients()
            optimizer.step()


def assert_held(model, optimizer, pruning):
    tensors = list(pruning.hold.tensors())
    held = {id(tensor) for tensor, _, _ in tensors}
    assert all(id(place.parameter) in held for place in pruning.places)
    in_optimizer = [id(p) for p in amp.master_params(optimizer) if p.dim() == 2]
    assert held >= set(in_optimizer)
    for tensor, mask, _ in tensors:
        assert not tensor.detach()[~mask].any()
        assert tensor.detach()[mask].ne(0).float().mean() > 0.9
        for value in optimizer.state.get(tensor, {}).values():
            if value.shape == mask.shape:
                assert not value[~mask].any()


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("amp_first", [True, False])
def test_held(level, closure, amp_first):
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-4)
    if amp_first:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    pruning = ASP.init_model_for_pruning(model, verbosity=0)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    if not amp_first:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    train(model, optimizer, closure=closure)
    assert_held(model, optimizer, pruning)
    assert all(not value.isnan().any() for value in model.state_dict().values())


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_held_across_a_skipped_step(level):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    pruning = ASP.prune_trained_model(model, optimizer)
    train(model, optimizer, factors=(1.0, float("inf"), 1.0))
    assert_held(model, optimizer, pruning)


def test_master_weights_come_back_bit_for_bit():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    halves = [weight.detach().clone() for weight in model.parameters()]
    masters = [master.detach().clone() for master in amp.master_params(optimizer)]
    ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True)
    ASP.compute_sparse_masks()
    ASP.restore_pruned_weights()
    assert all(map(torch.equal, model.parameters(), halves))
    assert all(map(torch.equal, amp.master_params(optimizer), masters))


def test_permutation_after_16_bit_weights_says_why_not(capsys):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    ASP.prune_trained_model(model, optimizer)
    assert "before it" in next(line for line in capsys.readouterr().out.splitlines() if "without permutation" in line)
