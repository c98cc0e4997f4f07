"""apex's snippet and its interface: several models, saved masks, restored and recomputed masks, errors."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from helpers_for_asp import ConvNet, assert_held, perceptron, pruned, train
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP
from mpx.errors import UserError
from mpx.sparsity.patterns import is_2of4


def test_snippet_trains_with_only_the_import_changed(capsys):
    torch.manual_seed(0)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(32, 3, 8, 8), torch.randint(0, 8, (32,))
    pruning = ASP.prune_trained_model(model, optimizer)
    assert model.training
    assert "Permuted" in capsys.readouterr().out
    assert [place.name for place in pruning.places] == ["conv::weight", "head::weight"]
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.7
    assert_held(pruning, optimizer)
    assert all(is_2of4(place.parameter) for place in pruning.places)


def test_several_models_in_one_process():
    first, second = perceptron(1), perceptron(2)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (first, second)]
    prunings = [ASP.init_model_for_pruning(model, verbosity=0, allow_permutation=False) for model in (first, second)]
    assert ASP.of() is prunings[1]
    assert ASP.of(first) is prunings[0]
    for model, optimizer in zip((first, second), optimizers, strict=True):
        ASP.init_optimizer_for_pruning(optimizer, model=model)
    ASP.compute_sparse_masks(model=first)
    assert ASP.is_sparsity_enabled(first)
    assert not ASP.is_sparsity_enabled()
    ASP.compute_sparse_masks()
    for model, optimizer, pruning in zip((first, second), optimizers, prunings, strict=True):
        train(model, optimizer)
        assert_held(pruning, optimizer)


def test_same_model_again_starts_afresh():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    pruned(model, optimizer)
    pruning = pruned(model, optimizer, mask_calculator="m4n2_2d_best")
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    train(model, optimizer)
    assert all(not p.parameter[~pruning.masks[p.name]].any() for p in pruning.places)


def test_dropped_model_is_freed_at_once():
    model = nn.Sequential(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruned(model, optimizer)
    gone = weakref.ref(model), weakref.ref(model[0])
    gc.disable()
    try:
        del model, optimizer
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
    assert not ASP.already_init_asp_model()


def test_checkpoint_loads_strictly_into_a_plain_model():
    model = perceptron()
    pruned(model, allow_recompute_mask=True)
    plain = perceptron(1)
    plain.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(plain(torch.ones(1, 16)), model(torch.ones(1, 16)))


def test_copies_and_pickles_are_plain_models():
    model = perceptron()
    pruned(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin[0].weight, model[0].weight)
        assert not ASP.already_init_asp_model(twin)
    assert ASP.already_init_asp_model(model)
    assert ASP.already_init_asp_model()


@pytest.mark.parametrize("weights_first", [True, False])
def test_masks_are_saved_and_loaded(weights_first, tmp_path):
    """Saved masks and values count more than what the zeros of the weights show."""
    model = perceptron()
    pruning = pruned(model, allow_recompute_mask=True)
    torch.save({"model": model.state_dict(), "asp": ASP.state_dict()}, tmp_path / "asp.pt")
    saved = torch.load(tmp_path / "asp.pt", weights_only=True)
    twin = perceptron(1)
    optimizer = torch.optim.Adam(twin.parameters())
    if weights_first:
        twin.load_state_dict(saved["model"])
    resumed = ASP.init_model_for_pruning(twin, verbosity=0, allow_recompute_mask=True)
    ASP.init_optimizer_for_pruning(optimizer)
    if not weights_first:
        twin.load_state_dict(saved["model"])
    ASP.load_state_dict(saved["asp"])
    train(twin, optimizer)
    assert_held(resumed, optimizer)
    assert all(torch.equal(resumed.masks[name], mask) for name, mask in pruning.masks.items())
    ASP.restore_pruned_weights()
    assert twin[0].weight.ne(0).all()


def test_restore_brings_values_back_bit_for_bit():
    model = perceptron()
    with torch.no_grad():
        model[0].weight[0, :4] = torch.tensor([-0.0, 0.0, 3.0, 4.0])
    dense = copy.deepcopy(model.state_dict())
    pruned(model, allow_recompute_mask=True)
    assert ASP.is_sparsity_enabled()
    assert is_2of4(model[0].weight)
    ASP.restore_pruned_weights()
    assert not ASP.is_sparsity_enabled()
    for name, value in model.state_dict().items():
        assert torch.equal(value.view(torch.int32), dense[name].view(torch.int32))


def test_recomputed_masks_see_the_pruned_values_again():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = pruned(model, optimizer, allow_recompute_mask=True)
    before = pruning.masks["0::weight"]
    with torch.no_grad():
        model[0].weight.mul_(1e-3)  # now whatever was pruned is larger
    ASP.compute_sparse_masks()
    assert torch.equal(pruning.masks["0::weight"], ~before)
    train(model, optimizer)
    assert_held(pruning)


def test_errors_are_one_line(monkeypatch):
    model = perceptron()
    monkeypatch.setattr(ASP, "_newest", staticmethod(lambda: None))
    assert ASP.already_init_asp_model() is False
    cases = [
        lambda: ASP.compute_sparse_masks(),
        lambda: ASP.is_sparsity_enabled(model),
        lambda: ASP.init_model_for_pruning([model]),
        lambda: ASP.init_model_for_pruning(model, mask_calculator="m4n2_1D"),
        lambda: ASP.init_model_for_pruning(model, mask_calculator=3),
        lambda: ASP.init_model_for_pruning(model, whitelist=[nn.LSTM]),
        lambda: pruned(model, mask_calculator=lambda weight: weight[0]),
        lambda: pruned(model, torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)),
        lambda: [pruned(model), ASP.compute_sparse_masks()],
        lambda: [pruned(model), ASP.restore_pruned_weights()],
        lambda: [pruned(model), ASP.load_state_dict({"masks": {"0::weight": torch.ones(3)}, "pruned": {}})],
        lambda: [pruned(model), ASP.load_state_dict(model.state_dict())],
    ]
    for case in cases:
        with pytest.raises(UserError) as caught:
            case()
        assert "\n" not in str(caught.value)
        assert "ASP" in str(caught.value)
