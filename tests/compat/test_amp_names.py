"""Names by which scripts reach into apex.amp: those that mean something here act, the others are refused in one line."""

import copy
import importlib
import math

import pytest
import torch
from helpers_for_amp import LEVELS, Weights, backward, batch, perceptron, same, snapshot, train_step
from torch import nn

from mpx.compat import amp
from mpx.compat.amp import casts
from mpx.errors import UserError


@pytest.fixture(autouse=True)
def _switches(monkeypatch):
    for name in ("hard_override", "allow_incoming_model_not_fp32"):
        monkeypatch.setattr(amp._amp_state, name, False)
    if hasattr(amp._amp_state, "handle"):
        monkeypatch.delattr(amp._amp_state, "handle")


def overflow(model, optimizer, **arguments):
    backward(model(batch()[0]).sum() * math.inf, optimizer, **arguments)


def test_help_lists_them():
    _, optimizer = perceptron("O2")
    owners = [amp._amp_state.loss_scalers[0], optimizer._amp_stash, casts.Handle()]
    names = [name for owner in owners for name, value in vars(type(owner)).items() if isinstance(value, property) or callable(value)]
    ours = {"scaled", "unscale_", "end_pass", "state_dict", "load_state_dict", "_noted"}  # of LossScaler
    ours |= {"pairs", "make_masters", "settle", "must_skip", "copy_to_model", "clear_master_gradients"}  # of Stash
    missing = [name for name in names if name not in ours and not name.startswith("__") and name not in amp.__doc__]
    assert "_scale_seq_len" in names
    assert not missing


def test_hasattr_before_initialize():
    for name in ("loss_scalers", "opt_properties", "handle"):
        assert not hasattr(amp._amp_state, name)
    perceptron("O1")
    for name in ("loss_scalers", "opt_properties", "handle"):
        assert hasattr(amp._amp_state, name)


def test_amp_state_as_a_module(capsys):
    module = importlib.import_module("mpx.compat.amp._amp_state")
    assert module._amp_state is amp._amp_state
    assert module.master_params is amp.master_params
    amp._amp_state.verbosity = 0
    module.maybe_print("nothing")
    amp._amp_state.verbosity = 1
    module.maybe_print("something", True)
    assert capsys.readouterr().out == "something\n"


def test_verbosity_of_a_running_training(capsys):
    model, optimizer = perceptron("O1", verbosity=1)
    amp._amp_state.verbosity = 0
    capsys.readouterr()
    overflow(model, optimizer)
    optimizer.step()
    assert capsys.readouterr().out == ""


def test_names_that_do_not_exist_cannot_be_set():
    _, optimizer = perceptron("O2")
    for owner in (amp._amp_state, amp._amp_state.loss_scalers[0], optimizer._amp_stash):
        with pytest.raises(AttributeError):
            owner.growth = 3


@pytest.mark.parametrize("arguments", [{"keep_batchnorm_fp32": True}, {"master_weights": True}, {"cast_model_type": torch.float16}])
def test_hard_override_takes_what_does_not_fit_together(arguments, capsys):
    amp._amp_state.hard_override = True
    model, optimizer = perceptron("O1", **arguments)
    (name,) = arguments
    assert f"Warning:  amp.initialize({name}=" in capsys.readouterr().out
    assert math.isfinite(train_step(model, optimizer))
    assert model[0].weight.dtype == arguments.get("cast_model_type", torch.float32)


def test_hard_override_takes_a_half_model(capsys):
    amp._amp_state.hard_override = True
    amp.initialize(nn.Linear(2, 2).half(), opt_level="O3", verbosity=0)
    assert "Warning:  amp.initialize: weight is torch.float16 already." in capsys.readouterr().out


@pytest.mark.parametrize("level", LEVELS)
def test_allow_incoming_model_not_fp32(level):
    """Two steps of FP16 and FP32 weights side by side, as without amp."""
    results = []
    for with_amp in (False, True):
        model = Weights(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.125)
        if with_amp:
            with pytest.raises(UserError, match=r"weight1 is torch\.float16 already"):
                amp.initialize(model, optimizer, opt_level=level, verbosity=0)
            amp._amp_state.allow_incoming_model_not_fp32 = True
            model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=4.0)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2))
            if with_amp:
                backward(loss, optimizer)
            else:
                loss.backward()
            optimizer.step()
        results.append([p.detach().float() for p in model.parameters()])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", [nn.Linear, lambda *size: nn.Conv1d(*size, 1), nn.Bilinear])
def test_half_layers_in_o1(kind):
    torch.manual_seed(0)
    model, x = (kind(4, 4, 4), (torch.randn(2, 4), torch.randn(2, 4))) if kind is nn.Bilinear else (kind(4, 4), (torch.randn(4, 4),))
    exact = model(*x)
    amp._amp_state.allow_incoming_model_not_fp32 = True
    model = amp.initialize(model.half(), opt_level="O1", verbosity=0)
    found = model(*x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(exact, found, rtol=1e-2, atol=2e-3)
    found.sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float16}


def test_what_a_half_weight_is_given_in_o1_stays():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, dtype=torch.float16))

        def forward(self, x):
            with torch.no_grad():
                self.weight.add_(x)
            return x * self.weight

    amp._amp_state.allow_incoming_model_not_fp32 = True
    model = amp.initialize(Counts(), opt_level="O1", verbosity=0)
    assert model(torch.ones(2)).tolist() == model.weight.tolist() == [2.0, 2.0]


def test_limits_and_length_of_a_scaler():
    model, optimizer = perceptron("O1")
    (scaler,) = amp._amp_state.loss_scalers
    assert (scaler._scale_seq_len, scaler._unskipped, scaler._min_loss_scale, scaler._max_loss_scale) == (2000, 0, None, 2.0**24)
    scaler._scale_seq_len, scaler._unskipped = 3, 2
    train_step(model, optimizer)
    assert scaler.state_dict() == {"loss_scale": 2.0**17, "unskipped": 0}
    scaler._min_loss_scale, scaler._max_loss_scale = 2.0**16, 2.0**16
    for _ in range(3):
        overflow(model, optimizer)
    assert scaler.loss_scale() == scaler._min_loss_scale == scaler._max_loss_scale == 2.0**16


def test_has_overflow():
    model, optimizer = perceptron("O1")
    (scaler,) = amp._amp_state.loss_scalers
    assert scaler._has_overflow is False
    overflow(model, optimizer)
    assert scaler._has_overflow is True
    train_step(model, optimizer)
    assert scaler._has_overflow is False
    overflow(model, optimizer, delay_overflow_check=True)
    scaler.clear_overflow_state()
    assert scaler.update_scale() is False
    scaler._has_overflow = True  # as found by another process
    assert scaler.update_scale() is True
    assert scaler.loss_scale() == 2.0**14


@pytest.mark.parametrize("own", [True, False])
def test_overflow_buffer(own):
    """As NVIDIA's BERT has it: a tensor of the script's own, or the scaler's, summed over processes."""
    model, optimizer = perceptron("O2")
    (scaler,) = amp._amp_state.loss_scalers
    overflow(model, optimizer, delay_overflow_check=True)
    assert scaler._overflow_buf.tolist() == [1]
    assert scaler.update_scale() is True
    if own:
        scaler._overflow_buf = torch.tensor([2], dtype=torch.int32)
    else:
        scaler._overflow_buf.add_(2)
    assert scaler.update_scale() is True
    assert scaler.update_scale() is False
    assert scaler._overflow_buf.tolist() == [0]


def test_stash_of_master_weights():
    model, optimizer = perceptron("O2")
    stash = optimizer._amp_stash
    linear, norm, _, last = model
    for found, expected in (
        (stash.all_fp16_params, [*linear.parameters(), *last.parameters()]),
        (stash.all_fp32_from_fp32_params, list(norm.parameters())),
        (stash.all_fp32_from_fp16_params, [p for i, p in enumerate(amp.master_params(optimizer)) if i not in (2, 3)]),
    ):
        assert [id(p) for p in found] == [id(p) for p in expected]
    backward(model(batch()[0]).sum(), optimizer, delay_unscale=True)
    assert stash.params_have_scaled_gradients


def test_resuming_as_nvidias_bert_does():
    """Before the first step it calls apex's late initialisation and writes into the master weights."""
    model, optimizer = perceptron("O2")
    for seed in range(2):
        train_step(model, optimizer, seed)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), [p.detach() for p in amp.master_params(optimizer)]])
    resumed, other = perceptron("O2", seed=1)
    resumed.load_state_dict(saved[0])
    other._lazy_init_maybe_master_weights()
    other._amp_stash.lazy_init_called = True
    other.load_state_dict(saved[1])
    for p, value in zip(amp.master_params(other), saved[2], strict=True):
        p.data.copy_(value)
    other._master_params_to_model_params()
    for one in ((model, optimizer), (resumed, other)):
        train_step(*one, seed=2)
    assert same(snapshot(model, optimizer), snapshot(resumed, other))
