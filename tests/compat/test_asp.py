"""apex's snippet and its interface over mpx's masks: what is pruned, held, saved, restored, permuted and
refused.
"""

import copy

import pytest
import torch
from helpers_for_asp import ConvNet, assert_held, perceptron, pruned, train
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP, amp
from mpx.errors import UserError
from mpx.sparsity.patterns import is_2of4
from mpx.sparsity.tiles import Tiles


def test_snippet_trains_with_only_the_import_changed(capsys):
    torch.manual_seed(0)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(32, 3, 8, 8), torch.randint(0, 8, (32,))
    pruning = ASP.prune_trained_model(model, optimizer)
    assert model.training
    assert "[ASP] Going on without permutation: it needs example_input=" in capsys.readouterr().out
    assert [weight.name for weight in pruning.masks.pruned] == ["conv.weight", "head.weight"]
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.7
    assert_held(pruning, optimizer)
    assert all(is_2of4(weight.parameter) for weight in pruning.masks.pruned)


class MyLinear(nn.Linear):
    pass


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 16))
        self.vector = nn.Parameter(torch.randn(16))


def names(model, **arguments):
    return [
        weight.name
        for weight in ASP.init_model_for_pruning(model, **({"verbosity": 0} | arguments)).masks.pruned
    ]


def test_eligibility():
    layers = nn.ModuleDict(
        {
            "subclass": MyLinear(16, 8),
            "few_outputs": nn.Linear(16, 4),
            "few_inputs": nn.Linear(8, 16),
            "conv1d": nn.Conv1d(16, 8, 3),
            "grouped": nn.Conv2d(32, 32, 3, groups=4),
            "stem": nn.Conv2d(3, 16, 3, dtype=torch.bfloat16),
            "attention": nn.MultiheadAttention(16, 2),
            "lstm": nn.LSTM(16, 16),
            "odd": Odd(),
            "frozen": nn.Linear(16, 16).requires_grad_(False),
        }
    )
    expected = ["subclass.weight", "conv1d.weight", "attention.in_proj_weight", "attention.out_proj.weight"]
    assert names(layers) == expected
    assert names(layers, custom_layer_dict={Odd: ["matrix", "vector"]}) == [*expected, "odd.matrix"]
    assert names(layers) == expected  # apex's default whitelist would have grown
    assert names(layers, allowed_layer_names=["conv1d", "subclass"]) == expected[:2]
    assert names(layers, disallowed_layer_names=["subclass"]) == expected[1:]
    assert names(layers, whitelist=[MyLinear]) == expected[:1]


@pytest.mark.parametrize("name", ["m4n2_2d_best", "m4n2_2d_greedy"])
def test_2d_masks(name):
    model = nn.Sequential(nn.Linear(32, 16), nn.Conv2d(16, 8, 3))
    pruned(model, torch.optim.SGD(model.parameters(), lr=0.1), mask_calculator=name, allow_permutation=True)
    for layer in model:
        assert Tiles().holds(layer.weight)
        assert is_2of4(layer.weight.transpose(0, 1))


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
        lambda p: torch.optim.LBFGS(p, max_iter=3),
    ],
)
def test_held_at_every_step_with_and_without_closure(make, closure):
    model = perceptron()
    optimizer = make(model.parameters())
    lbfgs = isinstance(optimizer, torch.optim.LBFGS)
    if not lbfgs:
        train(model, optimizer)  # state from dense training
    pruning = pruned(model, optimizer)
    train(model, optimizer, closure=closure or lbfgs)
    assert_held(pruning, *([] if lbfgs else [optimizer]))


def test_two_optimizers_of_one_model_in_turn():
    """A graph that holds the weights of one stays whole while the other steps."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2))
    generator, discriminator = (
        torch.optim.Adam(part.parameters(), lr=1e-2, weight_decay=0.1) for part in model
    )
    pruning = pruned(model, generator)
    for _ in range(2):
        ASP.init_optimizer_for_pruning(discriminator)
    assert len(discriminator._optimizer_step_pre_hooks) == 1
    for _ in range(3):
        fake = model[0](torch.randn(8, 16))
        (-model[1](fake.detach()).square().mean()).backward()
        discriminator.step()
        model[1](fake).square().mean().backward()
        generator.step()
    assert_held(pruning, generator, discriminator)


def test_grad_scaler_and_a_scheduler_that_was_built_first():
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    pruning = pruned(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 16)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert_held(pruning, optimizer)
    scheduler.step()  # warnings are errors
    assert scaler.get_scale() == 2.0


def test_recomputed_masks_see_the_pruned_values_again():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = pruned(model, optimizer, allow_recompute_mask=True)
    before = pruning.masks.masks["0.weight"].clone()
    with torch.no_grad():
        model[0].weight.mul_(1e-3)  # whatever is pruned is larger then
    ASP.compute_sparse_masks()
    assert torch.equal(pruning.masks.masks["0.weight"], ~before)
    train(model, optimizer)
    assert_held(pruning)


def test_apexs_mask_buffers_in_a_state_dict():
    model = perceptron()
    pruning = ASP.init_model_for_pruning(
        model, verbosity=0, allow_recompute_mask=True, allow_permutation=False
    )
    dense = copy.deepcopy(model)
    buffers = {f"{layer}.__weight_mma_{kind}" for layer in (0, 2, 4) for kind in ("mask", "pruned_p")}
    before = model.state_dict()
    assert set(before) == {*dense.state_dict(), *buffers}
    assert all(before[name].all() for name in buffers if name.endswith("mask"))
    ASP.compute_sparse_masks()
    state = nn.Sequential(model).state_dict(prefix="outer.")
    assert torch.equal(state["outer.0.2.__weight_mma_mask"], pruning.masks.masks["2.weight"])
    twin, state = perceptron(1), model.state_dict()
    resumed = ASP.init_model_for_pruning(twin, verbosity=0, allow_recompute_mask=True)
    twin.load_state_dict(state, strict=True)
    assert ASP.is_sparsity_enabled()
    assert all(torch.equal(resumed.masks.masks[name], mask) for name, mask in pruning.masks.masks.items())
    ASP.restore_pruned_weights()
    assert all(map(torch.equal, twin.parameters(), dense.parameters()))


def test_masks_of_pruned_weights_are_found_again():
    model, twin = perceptron(), perceptron(1)
    pruning = pruned(model)
    resumed = ASP.init_model_for_pruning(twin, verbosity=0, allow_permutation=False)
    twin.load_state_dict({name: one for name, one in model.state_dict().items() if "_mma_" not in name})
    assert not ASP.is_sparsity_enabled()
    ASP.compute_sparse_masks()
    assert all(torch.equal(resumed.masks.masks[name], mask) for name, mask in pruning.masks.masks.items())


def test_permutation_keeps_the_function_and_more_magnitude(capsys):
    torch.manual_seed(0)
    model, x = ConvNet(), torch.randn(4, 3, 8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).square().mean().backward()
    optimizer.step()
    expected = model.eval()(x)
    ASP.init_model_for_pruning(model, verbosity=2, allow_recompute_mask=True, example_input=x)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    assert (
        "[ASP] Permuted the channels of the model: the inputs of 2 of 2 weights. 2:4 keeps"
        in capsys.readouterr().out
    )
    stepped = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    stepped.step()
    with pytest.raises(
        UserError,
        match=r"the state of this SGD has the old order\. Call it before "
        r"compute_sparse_masks",
    ):
        ASP.init_optimizer_for_pruning(stepped)
    ASP.restore_pruned_weights()
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("amp_first", [True, False])
def test_with_amp(level, amp_first):
    """Masters inside the optimizer are held as well, whichever of the two came first, and across a skipped
    step.
    """
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-4)
    if amp_first:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    pruning = pruned(model, optimizer, allow_recompute_mask=True)
    if not amp_first:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    dynamic = level in ("O1", "O2")
    for seed, factor in enumerate((1.0, float("inf") if dynamic else 1.0, 1.0)):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        with amp.scale_loss(F.cross_entropy(model(x), torch.arange(8)) * factor, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert [id(weight.parameter) for weight in pruning.masks.pruned] == [
        id(p) for p in amp.master_params(optimizer) if p.dim() == 2
    ]
    assert_held(pruning, optimizer)
    for weight in pruning.masks.pruned:
        assert not model.get_parameter(weight.name)[~pruning.masks.masks[weight.name]].any()
    ASP.restore_pruned_weights()
    assert all(model.get_parameter(weight.name).ne(0).all() for weight in pruning.masks.pruned)


def test_errors_are_one_line(monkeypatch):
    model = perceptron()
    monkeypatch.setattr(ASP, "_newest", None)
    assert ASP.already_init_asp_model() is False
    cases = [
        lambda: ASP.compute_sparse_masks(),
        lambda: ASP.init_model_for_pruning([model]),
        lambda: ASP.init_model_for_pruning(model, mask_calculator="m4n2_1D"),
        lambda: ASP.init_model_for_pruning(model, mask_calculator=3),
        lambda: ASP.init_model_for_pruning(model, whitelist=[nn.LSTM]),
        lambda: pruned(model, mask_calculator=lambda weight: weight[0]),
        lambda: pruned(
            model, torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)
        ),
        lambda: [pruned(model), ASP.compute_sparse_masks()],
        lambda: [pruned(model), ASP.restore_pruned_weights()],
        lambda: pruned(model).take({"0.weight": torch.zeros(3, dtype=torch.bool)}, {}),
    ]
    for case in cases:
        with pytest.raises(UserError) as caught:
            case()
        assert "\n" not in str(caught.value)
        assert "ASP" in str(caught.value)
