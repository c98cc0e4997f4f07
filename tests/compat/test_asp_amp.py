"""ASP with mpx.compat.amp: masters inside the optimizer are held as well, whichever of the two came first."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP, amp
from mpx.compat.asp.permuting import permute


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
    tensors = list(pruning.enforcer.tensors())
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
    pruning = ASP.init_model_for_pruning(model, verbosity=0, allow_permutation=False)
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
    pruning = ASP.prune_trained_model(model, optimizer, allow_permutation=False)
    train(model, optimizer, factors=(1.0, float("inf"), 1.0))
    assert_held(model, optimizer, pruning)


def test_master_weights_come_back_bit_for_bit():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    halves = [weight.detach().clone() for weight in model.parameters()]
    masters = [master.detach().clone() for master in amp.master_params(optimizer)]
    ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True, allow_permutation=False)
    ASP.compute_sparse_masks()
    ASP.restore_pruned_weights()
    assert all(map(torch.equal, model.parameters(), halves))
    assert all(map(torch.equal, amp.master_params(optimizer), masters))


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("amp_first", [True, False])
def test_permutes_whichever_came_first(level, amp_first, capsys):
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
    x = torch.randn(8, 16)
    if amp_first:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    expected = model(x)
    ASP.init_model_for_pruning(model, verbosity=2, allow_recompute_mask=True)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    assert "[ASP] Permuted the channels of the model: the inputs of 1 of 2 weights" in capsys.readouterr().out
    if not amp_first:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    ASP.restore_pruned_weights()
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6 if level == "O0" else 5e-3)
    ASP.compute_sparse_masks()
    train(model, optimizer)
    assert_held(model, optimizer, ASP.of(model))


@pytest.mark.parametrize(("level", "wrapped"), [("O1", False), ("O2", False), ("O3", False), ("O2", True)])
def test_masters_gradients_and_state_move_along(level, wrapped):
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    train(model, optimizer)
    with amp.scale_loss(model(torch.randn(8, 16)).square().mean(), optimizer) as scaled:
        scaled.backward()
    names = dict(model.named_parameters())
    stepped = dict(zip(names, amp.master_params(optimizer), strict=True))
    kept = [{name: tensor.detach() for name, tensor in one.items()} for one in (names, stepped)]
    kept += [{name: tensor.grad for name, tensor in one.items() if tensor.grad is not None} for one in (names, stepped)]
    kept += [{name: optimizer.state[tensor][key] for name, tensor in stepped.items()} for key in ("exp_avg", "exp_avg_sq")]
    before = [{name: tensor.clone() for name, tensor in one.items()} for one in kept]
    forward, types = model.forward, [parameter.dtype for parameter in model.parameters()]
    places = ASP.init_model_for_pruning(model, verbosity=0).places
    report = permute(nn.DataParallel(model) if wrapped else model, places, [optimizer], torch.randn(4, 16).half(), print, progress=False)
    assert report.reason is None
    assert report.permutation.indices
    assert model.forward is forward
    assert types == [parameter.dtype for parameter in model.parameters()]
    for now, then in zip(kept, before, strict=True):
        assert any(not torch.equal(now[name], then[name]) for name in now)
        report.permutation.apply(then)
        assert all(torch.equal(now[name], then[name]) for name in now)


def test_permutation_of_a_recurrent_model_with_16_bit_weights(capsys):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(20, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 8)

        def forward(self, tokens):
            return self.head(self.lstm(self.embedding(tokens))[0])

    torch.manual_seed(0)
    model = amp.initialize(Tagger(), opt_level="O3", verbosity=0)
    tokens = torch.arange(8).view(2, 4)
    expected = model(tokens)
    ASP.init_model_for_pruning(model, verbosity=2, allow_recompute_mask=True)
    ASP.compute_sparse_masks()
    assert "Permuted" in capsys.readouterr().out
    ASP.restore_pruned_weights()
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=5e-3)
