"""Pruned models come back pruned: from a plain state_dict, whose zeros show the masks, and from one that has apex's mask buffers."""

import copy

import pytest
import torch
from helpers_for_asp import assert_held, perceptron, pruned, train
from torch import nn

from mpx.compat import ASP, amp
from mpx.sparsity.patterns import is_2of4

ADOPTED = "[ASP] 3 of 3 weights are pruned already: masks adopted from their zeros\n"


def saved(pattern="m4n2_1d", seed=0, **arguments):
    """(model, its optimizer, checkpoint) after some sparse training."""
    model = perceptron(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    pruned(model, optimizer, mask_calculator=pattern, **arguments)
    train(model, optimizer, steps=5)
    return model, optimizer, copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def density(model):
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    return sum(int(weight.ne(0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)


@pytest.mark.parametrize("pattern", ["m4n2_1d", "m4n2_2d_best", "m4n2_2d_greedy"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("weights_first", [False, True])
def test_plain_checkpoint_is_continued_as_if_never_interrupted(pattern, recompute, weights_first, capsys):
    expected, its_optimizer, checkpoint = saved(pattern, allow_recompute_mask=recompute)
    model = perceptron(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    if weights_first:
        model.load_state_dict(checkpoint["model"])
    pruning = ASP.init_model_for_pruning(model, pattern, verbosity=1, allow_recompute_mask=recompute)
    ASP.init_optimizer_for_pruning(optimizer)
    if not weights_first:
        model.load_state_dict(checkpoint["model"])
        assert ASP.is_sparsity_enabled()
    optimizer.load_state_dict(checkpoint["optimizer"])
    for one, stepper in ((model, optimizer), (expected, its_optimizer)):
        train(one, stepper)
    assert capsys.readouterr().out == ADOPTED
    assert_held(pruning, optimizer)
    assert all(map(torch.equal, model.parameters(), expected.parameters()))


def test_wrapped_and_16_bit_models_adopt_as_well(capsys):
    _, _, checkpoint = saved()
    for wrap in (nn.DataParallel, lambda model: model):
        model = perceptron(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        ASP.init_model_for_pruning(model, verbosity=1)
        ASP.init_optimizer_for_pruning(optimizer)
        outer = wrap(model)
        outer.load_state_dict({f"module.{name}" if outer is not model else name: value for name, value in checkpoint["model"].items()})
        assert capsys.readouterr().out == ADOPTED
        optimizer.step()
        assert all(is_2of4(master) for master in amp.master_params(optimizer) if master.dim() == 2)


@pytest.mark.parametrize("start", [nn.init.zeros_, nn.init.eye_, nn.init.normal_, lambda weight: nn.init.sparse_(weight, 0.5)])
def test_initialised_weights_are_not_taken_for_pruned_ones(start, capsys):
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    for layer in model:
        start(layer.weight.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ASP.init_model_for_pruning(model, verbosity=1)
    ASP.init_optimizer_for_pruning(optimizer)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    for _ in range(2):
        (model(torch.randn(16, 32)) - 1).square().mean().backward()
        optimizer.step()
    assert not ASP.is_sparsity_enabled()
    assert capsys.readouterr().out == ""


def test_dense_and_zero_layers_beside_pruned_ones_stay_dense_until_masks_are_computed(capsys):
    """A new head, or one that starts at zero."""
    _, _, checkpoint = saved()
    for start in (nn.init.normal_, nn.init.zeros_):
        state = checkpoint["model"] | {"4.weight": start(torch.empty(8, 32))}
        model = perceptron(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pruning = ASP.init_model_for_pruning(model, verbosity=1, allow_permutation=False)
        ASP.init_optimizer_for_pruning(optimizer)
        model.load_state_dict(state)
        assert "2 of 3 weights are pruned already" in (printed := capsys.readouterr().out)
        assert "1 stay dense, such as 4::weight" in printed
        train(model, optimizer)
        assert [is_2of4(layer.weight) for layer in model[::2]] == [True, True, False]
        assert model[4].weight.ne(0).float().mean() > 0.7  # some of its inputs are zero
        zeros = [layer.weight.eq(0) for layer in model[:4:2]]
        ASP.compute_sparse_masks()
        assert all(torch.equal(layer.weight.eq(0), zero) for layer, zero in zip(model[:4:2], zeros, strict=True))
        assert_held(pruning)


def test_loading_replaces_the_masks_of_what_was_there_before(capsys):
    expected, _, checkpoint = saved()
    model = perceptron(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = pruned(model, optimizer, verbosity=1, allow_recompute_mask=True)
    model.load_state_dict(checkpoint["model"])
    assert capsys.readouterr().out == ADOPTED
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    train(model, optimizer)
    assert density(model) == 0.5
    model.load_state_dict(copy.deepcopy(model.state_dict()))  # its own: nothing to say
    assert capsys.readouterr().out == ""
    assert_held(pruning)


def test_dense_weights_loaded_under_masks_are_announced(capsys):
    model = perceptron()
    dense = copy.deepcopy(model.state_dict())
    pruned(model, verbosity=1)
    model.load_state_dict(dense)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("[ASP] Warning: in the loaded state_dict 3 weights, such as 0::weight, are not zero where their masks prune")


def test_adopted_masks_can_be_switched_off(capsys):
    _, _, checkpoint = saved()
    model = perceptron(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ASP.init_model_for_pruning(model, verbosity=1)
    ASP.init_optimizer_for_pruning(optimizer)
    model.load_state_dict(checkpoint["model"])
    ASP.restore_pruned_weights()
    assert "no pruned values; these stay zero" in capsys.readouterr().out
    train(model, optimizer)
    assert density(model) > 0.9
    assert not ASP.is_sparsity_enabled()


def test_weights_loaded_before_asp_was_initialised_are_saved_with_their_masks():
    first, _, checkpoint = saved()
    model = perceptron(1)
    model.load_state_dict(checkpoint["model"])
    ASP.init_model_for_pruning(model, verbosity=0)
    assert all(torch.equal(ASP.of(first).masks[name], mask) for name, mask in ASP.state_dict()["masks"].items())
    ASP.load_state_dict({"masks": {}, "pruned": {}})  # as saved before masks were computed; the weights say more
    assert ASP.is_sparsity_enabled()


def test_apexs_mask_buffers_are_written_where_asked_for(capsys):
    model = perceptron()
    pruning = ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True, allow_permutation=False, masks_in_state_dict=True)
    plain = [name for name, _ in model.named_parameters()]
    names = {f"{layer}.__weight_mma_{kind}" for layer in (0, 2, 4) for kind in ("mask", "pruned_p")}
    before = model.state_dict()
    assert set(before) == {*plain, *names}
    assert all(before[name].all() for name in names if name.endswith("mask"))
    ASP.compute_sparse_masks()
    state = nn.Sequential(model).state_dict(prefix="outer.")
    for place in pruning.places:
        stem = f"outer.0.{place.layer}.__weight_mma_"
        assert torch.equal(state[f"{stem}mask"], pruning.masks[place.name])
        assert torch.equal(state[f"{stem}pruned_p"], pruning.pruned[place.name])
    twin, state = perceptron(1), model.state_dict()
    for _ in range(2):  # the second time in place of the first
        resumed = ASP.init_model_for_pruning(twin, verbosity=1, allow_recompute_mask=True)
    twin.load_state_dict(state, strict=True)
    assert set(state) == {*plain, *names}
    assert capsys.readouterr().out == ""
    assert all(torch.equal(resumed.masks[name], mask) for name, mask in pruning.masks.items())
    ASP.restore_pruned_weights()
    assert density(twin) == 1
    assert set(copy.deepcopy(model).state_dict()) == set(plain)  # a copy is a plain model
    ASP.prune_trained_model(model, torch.optim.SGD(model.parameters(), lr=0.1), allow_permutation=False, masks_in_state_dict=True)
    assert set(model.state_dict()) == {*plain, *(name for name in names if name.endswith("mask"))}
