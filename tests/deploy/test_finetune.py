"""Quantisation-aware fine-tuning trains with what is served, gains where rounding loses, and leaves zeros alone."""

import copy
import json
from itertools import pairwise

import numpy
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.nn.functional import cross_entropy

from mpx.data import load
from mpx.deploy import calibrate, finetune, onnx, recurrent
from mpx.deploy.build import Trained
from mpx.deploy.finetune import Operands, Tuning, finetuned, round_operands, tuning_of
from mpx.deploy.kernels import Kernel
from mpx.deploy.measure import Samples
from mpx.errors import UserError
from mpx.models import build
from mpx.settings.front_door import CONF
from mpx.sparsity.patterns import is_2of4, mask_2of4

CPU = torch.device("cpu")
SGD = {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
ADAMW = {"name": "adamw", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.05}
LAYERS = [lambda: (nn.Linear(24, 16), (9, 24)), lambda: (nn.Conv2d(8, 16, 3, padding=1), (3, 8, 6, 6))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", ["int8", "fp8"])
@pytest.mark.parametrize("make", LAYERS)
def test_operands_are_those_of_the_served_product_to_the_bit(make, fmt, dtype):
    torch.manual_seed(0)
    layer, shape = make()
    x = torch.randn(shape) * 3
    largest = x.abs().max().item() / 2  # some are cut
    served = Kernel(fmt).serve(copy.deepcopy(layer).to(dtype), largest).product
    scale = served.quantise(layer.weight.detach().flatten(1).to(dtype))[1]
    expected = served.weight.float() * scale.view(-1, 1)
    if x.dim() == 4:  # a filter's values lie in another order there
        expected = expected.unflatten(1, (3, 3, 8)).permute(0, 3, 1, 2)
    model = nn.Sequential(layer)
    round_operands(model, Operands(fmt, {"0": largest}, dtype))
    seen = []
    layer.register_forward_hook(lambda layer, args, out: seen.append(args[0]))
    model(x)
    assert torch.equal(layer.weight, expected)
    assert torch.equal(seen[0], served.prepare(x.to(dtype)).float() * served.step)
    assert not torch.equal(seen[0], x.clamp(-largest, largest))


def test_gradients_pass_through_rounding_and_not_through_cutting():
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.3]])
    round_operands(model := nn.Sequential(layer), Operands("int8", {"0": 1.0}, torch.float32))
    x = torch.tensor([[0.5, 1.5]], requires_grad=True)
    model(x).sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0]]
    rounded = layer.parametrizations.weight.original.grad
    torch.testing.assert_close(rounded, torch.tensor([[64 / 127, 1.0]]))


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_zeros_stay_zero_at_every_step(optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight.mul_(mask_2of4(model[0].weight))
    weight, away, start = model[0].weight, model[0].weight == 0, model[0].weight.clone()
    round_operands(model, Operands("int8", {"0": 2.0, "2": 2.0}, torch.float32))
    tuning = Tuning(1, OmegaConf.create(optimizer | {"lr": 0.1}), {}, 0.0, 0)
    batches = ((torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(20))
    for _ in finetune._steps(model, tuning, batches, 20):
        assert weight[away].eq(0).all()
        assert is_2of4(weight)
        assert is_2of4(model[0].weight)
    assert (weight - start)[~away].abs().min() > 0


def steps_of(model, batches, lr, smoothing=0.0, task="classification"):
    tuning = Tuning(1, OmegaConf.create(SGD | {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "lr": lr}), {}, smoothing, 0)
    yield from finetune._steps(model, tuning, iter(batches), len(batches), task)


def test_the_learning_rate_falls_to_zero():
    model, batch = nn.Linear(4, 3), (torch.randn(8, 4), torch.randint(0, 3, (8,)))
    weights = [model.weight.detach().clone()]
    for _ in steps_of(model, [batch] * 10, 1e-3):
        weights.append(model.weight.detach().clone())
    moved = [(after - before).norm().item() for before, after in pairwise(weights)]
    assert [move / moved[0] for move in moved] == pytest.approx([1 - step / 10 for step in range(10)], rel=0.02)


def test_norms_keep_their_statistics_and_labels_are_smoothed():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    x, y = torch.randn(8, 4) + 5, torch.randint(0, 3, (8,))
    expected = cross_entropy(copy.deepcopy(model).eval()(x), y, label_smoothing=0.2).item()
    (loss,) = steps_of(model, [(x, y)], 0.1, smoothing=0.2)
    assert loss.item() == pytest.approx(expected)
    assert model[0].running_mean.tolist() == [0, 0, 0, 0]


@pytest.fixture(scope="module")
def spoilt():
    """(a trained MLP on digits, the samples that calibrate and validate it), in which one weight of each row is so large that the others
    round to almost nothing. It belongs to a pixel that is always black, and the bias takes it back: in FP32 nothing changes."""
    data = load(DIGITS)
    torch.manual_seed(0)
    model = build(settings("model/mlp", widths=[64, 32]), data.spec)
    x, y = next(Samples(data.train, data.spec, DIGITS, CPU).batches(len(data.train)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    black = x.flatten(1)[:, 0]
    assert (black == black[0]).all()
    with torch.no_grad():
        first.weight.mul_(mask_2of4(first.weight))
        change = 220 * first.weight.abs().amax(1) - first.weight[:, 0]
        first.weight[:, 0] += change
        first.weight[:, 1:4] = 0  # and so the pattern holds
        first.bias -= change * black[0]
    return Trained(model.eval().requires_grad_(False), data), Samples(data.val, data.spec, DIGITS, CPU)


def settings(path, **changes):
    return OmegaConf.to_container(OmegaConf.load(CONF / f"{path}.yaml")) | changes


DIGITS = settings("data/digits", augment="none", batch_size=64, eval_batch_size=100)  # shifted images have no pixel that is always black


def tuned(spoilt, lr, epochs=4.0):
    found, val = spoilt
    with torch.no_grad():
        ranges = calibrate.ranges(found.model, lambda: (x for x, _ in val.batches(50)), "int8")
    tuning = Tuning(epochs, OmegaConf.create(ADAMW | {"lr": lr}), DIGITS, 0.0, 0)
    return finetuned(found, tuning, Operands("int8", ranges, torch.float32), val)


@pytest.fixture(scope="module")
def better(spoilt):
    return tuned(spoilt, 3e-3)


def test_it_gains_where_rounding_loses(better):
    _, said = better
    assert said["kept"]
    assert said["after"]["val/loss"] < 0.7 * said["before"]["val/loss"]
    assert said["after"]["val/accuracy"] > said["before"]["val/accuracy"] + 0.1


@pytest.mark.skipif(onnx.largest_weight() < 127, reason="weights of 7 bits on this CPU")
def test_it_gains_as_served(spoilt, better):
    """By ONNX Runtime, whose activations have a zero point."""
    (found, val), (model, said) = spoilt, better
    served = [served_accuracy(one.model, val) for one in (found, model)]
    assert served[1] > served[0] + 0.1
    assert served == pytest.approx([said["before"]["val/accuracy"], said["after"]["val/accuracy"]], abs=0.03)


def served_accuracy(model, val):
    def batches():
        return (x for x, _ in val.batches(50))

    call = onnx.OnnxModel(onnx.quantised(onnx.exported(model, val.batch(2)), batches, static=True))
    return val.evaluate(call, 50)["test/accuracy"]


def test_zeros_are_zero_in_what_is_served(spoilt, better):
    from onnx import load_model_from_string, numpy_helper

    (found, val), (model, _) = spoilt, better
    (name, before), *_ = ((name, value) for name, value in found.model.named_parameters() if value.dim() == 2)
    after = dict(model.model.named_parameters())[name]
    assert torch.equal(before == 0, after == 0)
    assert is_2of4(after)
    content = onnx.quantised(onnx.exported(model.model, val.batch(2)), lambda: iter([val.batch(50)]), static=True)
    arrays = [numpy_helper.to_array(value) for value in load_model_from_string(content).graph.initializer]
    (array,) = (a if a.shape == tuple(after.shape) else a.T for a in arrays if a.dtype == numpy.int8 and a.size == after.numel())
    assert (array[(after == 0).numpy()] == 0).all()


def test_projections_of_an_lstm_are_trained_rounded():
    """As on a GPU, where they are layers. What comes back is an nn.LSTM, whose zeros have stayed."""
    data = load(DIGITS)
    torch.manual_seed(0)
    model = build(settings("model/lstm", hidden_size=32, dropout=0.0), data.spec).eval().requires_grad_(False)
    for weight in model.lstm.parameters():
        weight.mul_(mask_2of4(weight) if weight.dim() == 2 and weight.shape[1] % 4 == 0 else 1)
    val, before = Samples(data.val, data.spec, DIGITS, CPU), copy.deepcopy(model.state_dict())
    names = recurrent.projections(model, val.batch(2))
    assert names == ["lstm.weight_ih_l0", "lstm.weight_ih_l1"]
    with torch.no_grad():
        ranges = calibrate.ranges(recurrent.apart(model, names), lambda: [val.batch(100)], "int8")
    assert ranges.keys() == {*names, "classifier"}
    inputs = val.batch(100)[:, 0]  # rows of pixels
    assert 0.5 * inputs.abs().max() < ranges[names[0]] <= inputs.abs().max()
    tuning = Tuning(2.0, OmegaConf.create(ADAMW | {"lr": 0.01}), DIGITS, 0.0, 0)
    found, said = finetuned(Trained(model, data), tuning, Operands("int8", ranges, torch.float32), val)
    assert said["kept"]
    assert said["after"]["val/accuracy"] > said["before"]["val/accuracy"] + 0.1
    after = found.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(torch.equal(before[name], value) for name, value in after.items())
    assert all(is_2of4(after[name]) for name in names)
    rounded = recurrent.apart(found.model, names)
    round_operands(rounded, Operands("int8", ranges, torch.float32))
    with torch.no_grad():
        losses = [val.evaluate(one, 100, "val")["val/loss"] for one in (found.model, rounded)]
    assert losses[1] == pytest.approx(said["after"]["val/loss"], rel=1e-6)
    assert losses[0] != pytest.approx(said["after"]["val/loss"], rel=1e-4)


def test_the_model_is_left_as_it_is_where_no_epoch_helps(spoilt):
    found, said = tuned(spoilt, 1e3, epochs=0.1)
    assert found is spoilt[0]
    assert not said["kept"]
    assert said["after"]["val/loss"] > said["before"]["val/loss"]


def test_the_same_seed_gives_the_same_weights(spoilt):
    first, second = (tuned(spoilt, 3e-3, epochs=0.3)[0].model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], value) for name, value in spoilt[0].model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "lstm"])
def test_row(deploy, name):
    done, (row,) = deploy(name, "format=int8", "batch=[50]", "finetune.epochs=0.2", "finetune.lr_share=0.1")
    assert done.code == 0, done.err
    said = row["finetune"]
    config = json.loads((deploy.folder / "result.json").read_text())["config"]
    assert (said["epochs"], said["lr"]) == (0.2, pytest.approx(0.1 * config["optimizer"]["lr"]))
    assert said["before"].keys() == said["after"].keys() >= {"val/loss", "val/accuracy"}
    assert ("served so" if said["kept"] else "served without") in done.words
    assert "fine-tuning, epoch 0." in done.err
    assert row["speed"][0]["relative_error"] <= 0.1  # to the tuned model in FP32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": None}, r"^finetune.epochs=1: the run's record lacks settings of its training \(TypeError: "),
        ({"optimizer": {"name": "sgd"}}, r"lacks settings of its training \(KeyError: 'weight_decay'\)\. Use finetune\.epochs=0\.$"),
        (
            {"optimizer": ADAMW | {"lr": "x"}},
            r"^finetune.epochs=1: the run's result.json is damaged \(optimizer.lr=x must be a number above 0\)\. Use finetune.epochs=0\.$",
        ),
        ({"seed": -1}, r"^finetune.epochs=1: the run's result.json is damaged \(seed=-1 must be a whole number"),
    ],
)
def test_a_record_without_the_settings_of_a_training(change, message):
    config = {"optimizer": ADAMW | {"lr": 0.1}, "label_smoothing": 0.1, "seed": 3, "data": {}}
    assert tuning_of(config, 1, 0.01).optimizer.lr == pytest.approx(1e-3)
    with pytest.raises(UserError, match=message):
        tuning_of(config | change, 1, 0.01)


def test_a_model_without_layers_to_round():
    with pytest.raises(UserError, match=r"^finetune.epochs: no layer of this model multiplies INT8\. Use finetune.epochs=0\.$"):
        round_operands(nn.Sequential(nn.LSTM(2, 2)), Operands("int8", {}, torch.float32))
