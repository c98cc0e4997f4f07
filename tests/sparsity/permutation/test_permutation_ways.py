"""What one trace does not meet: training mode, arguments that are not given, parameters without part in it, other views of a tensor."""

import warnings

import pytest
import torch
from helpers_for_permutation import assert_same_function, permuted, permuted_names, reasons, shaken
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def largest_change(before, after) -> float:
    """Of any output, as a share of its size."""
    before, after = ([one] if isinstance(one, Tensor) else list(one) for one in (before, after))
    return max(float((one - other).detach().abs().max() / one.detach().abs().max()) for one, other in zip(before, after, strict=True))


class Auxiliary(nn.Module):
    """A second head in training alone, as the issue has it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.aux = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x):
        h = self.a(x).relu()
        return (self.b(h), self.aux(h)) if self.training else self.b(h)


def test_heads_of_training_move_along():
    torch.manual_seed(0)
    model, x = Auxiliary(), torch.randn(4, 16)
    before = model(x)
    report = permuted(model, x)
    assert permuted_names(report) == {"b.weight", "aux.weight"}
    assert largest_change(before, model(x)) < 1e-5
    assert model.training


class Conditional(nn.Module):
    """forward(x, c=None): `use` says how c, of as many values as h has channels, meets h."""

    def __init__(self, use):
        super().__init__()
        self.a, self.b, self.inner = nn.Linear(16, 32), nn.Linear(32, 16), nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.condition, self.use = nn.Linear(32, 32), use

    def forward(self, x, c=None):
        h = self.a(x).relu()
        if c is not None:
            h = self.use(self, h, c)
        return self.b(h + self.inner(h))


USES = {"a layer": lambda m, h, c: h + m.condition(c), "nothing": lambda m, h, c: h * c}


@pytest.mark.parametrize("use", USES)
def test_an_argument_that_is_not_given_holds_what_it_may_meet(use):
    torch.manual_seed(0)
    model, x, c = Conditional(USES[use]), torch.randn(4, 16), torch.randn(4, 32)
    before = model(x), model(x, c)
    report = permuted(model, x)
    assert largest_change(before, (model(x), model(x, c))) < 1e-5
    why = "its input channels stay: condition.weight takes no part in the traced passes and may act on it"
    assert permuted_names(report) == {"inner.2.weight"}  # out of reach: within a child
    assert reasons(report)["b.weight"] == reasons(report)["inner.0.weight"] == why


@pytest.mark.parametrize("form", [lambda x, c: [x, (x, c)], lambda x, c: [{"x": x}, {"x": x, "c": c}], lambda x, c: [(x, c), x]])
def test_every_way_to_call_can_be_given(form):
    torch.manual_seed(0)
    model, x, c = Conditional(USES["a layer"]), torch.randn(4, 16), torch.randn(4, 32)
    before = model(x), model(x, c)
    report = permuted(model, form(x, c))
    assert permuted_names(report) == {"b.weight", "inner.0.weight", "inner.2.weight"}
    assert largest_change(before, (model(x), model(x, c))) < 1e-5


def test_who_calls_in_these_ways_alone_can_say_so():
    model, x = Conditional(USES["a layer"]), torch.randn(4, 16)
    assert permuted_names(permuted(model, x, exhaustive=True)) == {"b.weight", "inner.0.weight", "inner.2.weight"}


def causal(name):
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=32, **sizes))
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, **heads, **sizes))


def test_causal_models_are_traced_without_their_cache():
    model, ids = shaken(causal("llama")), torch.randint(3, 96, (2, 12))
    with torch.no_grad():
        before, text = model(ids).logits, model.generate(ids, max_new_tokens=4, do_sample=False)
        report = permuted(model, ids)
        after, later = model(ids).logits, model.generate(ids, max_new_tokens=4, do_sample=False)
    assert len(permuted_names(report)) >= 12
    assert largest_change(before, after) < 1e-5
    assert torch.equal(text, later)
    assert model.config.use_cache


def test_a_model_that_cannot_be_traced_in_training_mode_stays():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 8)

        def forward(self, x):
            h = self.a(x)
            return self.b(h) if not self.training or h.sum() > 0 else self.b(-h)

    report = permuted(Dropping().eval(), torch.randn(2, 16))
    assert report.reason.startswith("torch.export cannot trace this model in training mode: ")


def test_a_wrong_rule_in_training_mode_is_noticed(monkeypatch):
    """As if the trace of training mode had been missed."""
    from mpx.sparsity.permutation import graph

    torch.manual_seed(0)
    monkeypatch.setattr(graph, "trace", lambda model, ways, marked=False, original=graph.trace: original(model, ways, marked=marked)[:1])
    model, x = Auxiliary(), torch.randn(4, 16)
    before = model(x)
    report = permuted(model, x, exhaustive=True)
    assert "everything was put back" in report.reason
    assert largest_change(before, model(x)) == 0


@pytest.mark.parametrize("view", [lambda whole: whole[:, :32], lambda whole: whole.view(-1, 2, 32)[:, 0]])
def test_writing_into_a_view_is_seen_by_the_other_views(view):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.c, self.b = nn.Linear(16, 32), nn.Linear(16, 64), nn.Linear(64, 8)

        def forward(self, x):
            whole = torch.zeros(len(x), 64)
            view(whole).add_(self.a(x).relu())
            return self.b(whole * self.c(x))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = assert_same_function(shaken(Writes()), torch.randn(4, 16))
    assert "b.weight" not in permuted_names(report)
    assert "add writes into a part of a tensor" in reasons(report)["b.weight"]
