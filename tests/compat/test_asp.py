"""apex's snippet and its whole interface, and one test for every defect of apex's ASP."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP
from mpx.errors import UserError
from mpx.sparsity.patterns import is_2of4
from mpx.sparsity.tiles import Tiles


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        return self.head(F.relu(self.bn(self.conv(F.relu(self.stem(x))))).mean((2, 3)))


def perceptron(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def pruned(model, optimizer=None, **arguments):
    pruning = ASP.init_model_for_pruning(model, **({"verbosity": 0, "allow_permutation": False} | arguments))
    if optimizer is not None:
        ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    return pruning


def train(model, optimizer, steps=3, closure=False):
    for seed in range(steps):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))

        def loss(x=x):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x.to(next(model.parameters()))).float(), torch.arange(8))
            value.backward()
            return value

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


def assert_held(pruning, *optimizers):
    """Weights and optimizer state are +0 where pruned, and some others are not."""
    assert pruning.masks
    for place in pruning.places:
        away = ~pruning.masks[place.name].to(place.parameter.device)
        assert away.any()
        values = [place.parameter] + [
            one for opt in optimizers for one in opt.state[place.parameter].values() if one.shape == away.shape and one.dim()
        ]
        for value in values:
            assert not value.detach()[away].any()
            assert not value.detach()[away].signbit().any()
            assert value.detach()[~away].ne(0).float().mean() > 0.5


def test_snippet_trains_with_only_the_import_changed(capsys):
    torch.manual_seed(0)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(32, 3, 8, 8), torch.randint(0, 8, (32,))
    model.eval()
    before = model(x).detach()
    model.train()
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
    assert before.isfinite().all()
    assert_held(pruning, optimizer)
    assert all(is_2of4(place.parameter) for place in pruning.places)


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    ],
)
def test_held_at_every_step_with_and_without_closure(make, closure):
    model = perceptron()
    optimizer = make(model.parameters())
    train(model, optimizer)  # state from dense training
    pruning = pruned(model, optimizer)
    assert_held(pruning, optimizer)
    train(model, optimizer, closure=closure)
    assert_held(pruning, optimizer)


def test_lbfgs_and_closure_by_keyword():
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    pruning = pruned(model, optimizer)
    x, calls = torch.randn(8, 16), []

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure=closure).item() == calls[0]
    assert len(calls) > 1
    assert_held(pruning)


def test_groups_and_two_optimizers():
    model = perceptron()
    first = torch.optim.AdamW([{"params": [model[0].weight]}, {"params": [model[2].weight], "weight_decay": 0.5}])
    second = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)
    pruning = pruned(model, first)
    ASP.init_optimizer_for_pruning(second)
    ASP.init_optimizer_for_pruning(second)
    assert len(second._optimizer_step_pre_hooks) == 1
    for _ in range(3):
        model(torch.randn(4, 16)).square().sum().backward()
        first.step()
        second.step()
    assert all(not p.parameter[~pruning.masks[p.name]].any() for p in pruning.places)


def test_infinite_and_nan_gradients_where_pruned():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    pruning = pruned(model, optimizer)
    for place in pruning.places:
        mask = pruning.masks[place.name]
        place.parameter.grad = torch.where(mask, 1.0, torch.where(torch.rand(mask.shape) > 0.5, torch.inf, torch.nan))
    optimizer.step()
    assert_held(pruning, optimizer)


def test_grad_scaler_skips_and_steps():
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    pruning = pruned(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 16)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert_held(pruning, optimizer)
    assert scaler.get_scale() == 2.0


def test_scheduler_built_first_does_not_warn():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    pruning = pruned(model, optimizer)
    train(model, optimizer, steps=1)
    scheduler.step()  # warnings are errors
    assert_held(pruning)


def test_several_models_in_one_process():
    first, second = perceptron(1), perceptron(2)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (first, second)]
    prunings = [ASP.init_model_for_pruning(model, verbosity=0) for model in (first, second)]
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


def test_masks_are_saved_and_loaded(tmp_path):
    model = perceptron()
    pruning = pruned(model, allow_recompute_mask=True)
    torch.save({"model": model.state_dict(), "asp": ASP.state_dict()}, tmp_path / "asp.pt")
    saved = torch.load(tmp_path / "asp.pt", weights_only=True)
    twin = perceptron(1)
    optimizer = torch.optim.Adam(twin.parameters())
    twin.load_state_dict(saved["model"])
    resumed = ASP.init_model_for_pruning(twin, verbosity=0, allow_recompute_mask=True)
    ASP.init_optimizer_for_pruning(optimizer)
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


def test_moved_model_keeps_its_masks():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = pruned(model, optimizer, allow_recompute_mask=True)
    model.to(torch.bfloat16)
    train(model, optimizer)
    assert_held(pruning)
    model.double()
    train(model, optimizer)
    assert_held(pruning)
    ASP.restore_pruned_weights()
    assert model[0].weight.ne(0).all()


class MyLinear(nn.Linear):
    pass


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 16))
        self.vector = nn.Parameter(torch.randn(16))


def names(model, **arguments):
    return [place.name for place in ASP.init_model_for_pruning(model, **({"verbosity": 0} | arguments)).places]


def test_eligibility():
    layers = nn.ModuleDict(
        {
            "subclass": MyLinear(16, 8),
            "few_outputs": nn.Linear(16, 4),
            "few_inputs": nn.Linear(8, 16),
            "conv1d": nn.Conv1d(16, 8, 3),
            "conv3d": nn.Conv3d(32, 8, 3),
            "grouped": nn.Conv2d(32, 32, 3, groups=4),
            "stem": nn.Conv2d(3, 16, 3, dtype=torch.bfloat16),
            "attention": nn.MultiheadAttention(16, 2),
            "lstm": nn.LSTM(16, 16),
            "odd": Odd(),
            "frozen": nn.Linear(16, 16).requires_grad_(False),
        }
    )
    expected = ["subclass", "conv1d", "conv3d", "attention::in_proj_weight", "attention.out_proj"]
    expected = [name if "::" in name else f"{name}::weight" for name in expected]
    assert names(layers) == expected
    assert names(layers, custom_layer_dict={Odd: ["matrix", "vector"]}) == [*expected, "odd::matrix"]
    assert names(layers) == expected  # apex's default whitelist would have grown
    assert names(layers, allowed_layer_names=["conv1d", "subclass"]) == expected[:2]
    assert names(layers, disallowed_layer_names=["subclass"]) == expected[1:]
    assert names(layers, whitelist=[nn.Conv3d]) == expected[2:3]
    assert names(layers, whitelist=[MyLinear]) == expected[:1]
    pruned(layers)
    assert all(is_2of4(place.parameter) for place in ASP.of().places)


def test_shared_weight_is_pruned_once():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].weight = model[0].weight
    assert names(model) == ["0::weight"]


def apex_mask(weight):
    """apex's create_mask and mn_1d_best, on the CPU."""
    patterns = torch.tensor(list(set(itertools.permutations([1.0, 1.0, 0.0, 0.0]))))
    order = (2, 3, 0, 1)[: weight.dim()] if weight.dim() == 4 else (0, 2, 1) if weight.dim() == 3 else (0, 1)
    t = weight.detach().float().permute(order).contiguous()
    best = torch.argmax(torch.matmul(t.view(-1, 4).abs(), patterns.t()), dim=1)
    back = torch.tensor(order).argsort().tolist()
    return patterns[best].view(t.shape).permute(back).bool()


@pytest.mark.parametrize("shape", [(64, 64), (16, 32, 5), (32, 32, 3, 3)])
@pytest.mark.parametrize("kind", ["normal", "ties", "swamped", "half", "channels_last"])
def test_masks_are_apexs(shape, kind):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    if kind == "ties":
        weight = weight.round()
    elif kind == "swamped":  # sums of a large value with small ones round to equal ones
        weight = weight * 10.0 ** torch.randint(-8, 1, shape)
    elif kind == "half":
        weight = weight.bfloat16()
    elif kind == "channels_last" and len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    layer = {2: nn.Linear(64, 64), 3: nn.Conv1d(32, 16, 5), 4: nn.Conv2d(32, 32, 3)}[len(shape)]
    layer.weight = nn.Parameter(weight.clone())
    model = nn.Sequential(layer)
    mask = pruned(model).masks["0::weight"]
    assert torch.equal(mask, apex_mask(weight))
    assert torch.equal(layer.weight, torch.where(mask, weight, 0))


@pytest.mark.parametrize("name", ["m4n2_2d_best", "m4n2_2d_greedy"])
def test_2d_masks(name):
    model = nn.Sequential(nn.Linear(32, 16), nn.Conv2d(16, 8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruned(model, optimizer, mask_calculator=name, allow_permutation=True)
    assert ASP.is_sparsity_enabled()
    for layer in model:
        assert Tiles().holds(layer.weight)
        assert is_2of4(layer.weight.transpose(0, 1))


def test_callable_mask():
    model = perceptron()
    pruned(model, mask_calculator=lambda weight: (weight > 0).int())
    assert (model[0].weight >= 0).all()


def test_errors_are_one_line():
    model = perceptron()
    ASP._newest = staticmethod(lambda: None)
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
    ]
    for case in cases:
        with pytest.raises(UserError) as caught:
            case()
        assert "\n" not in str(caught.value)
        assert "ASP" in str(caught.value)
