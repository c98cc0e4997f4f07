"""2:4 layers with cuSPARSELt's products replaced by dense ones, which no CPU has; tests/gpu/test_gpu_deploy.py has the real ones."""

import pytest
import torch
from torch import nn

from mpx.deploy import choose, linear, sparse
from mpx.deploy.linear import WAYS, Linear2of4
from mpx.errors import UserError
from mpx.sparsity.patterns import mask_2of4


@pytest.fixture
def by_dense_products(monkeypatch):
    """What was searched for, as (tokens, transposed, bias within)."""
    searched = []

    def product(packed, b, out_dtype, *, bias, transposed, **algorithm):
        assert algorithm == {"alg_id": 7, "split_k": 1, "split_k_mode": -1}
        assert b.shape[1] % 16 == 0
        found = (packed @ b) + (0 if bias is None else bias[:, None])
        return found.t().contiguous() if transposed else found

    def search(packed, b, out_dtype, *, bias, transposed):
        searched.append((b.shape[1], transposed, bias is not None))
        return {"split_k": 1, "alg_id": 7, "split_k_mode": -1}

    for name, function in (("compress_2of4", torch.clone), ("mm_2of4", product), ("fastest_mm_2of4", search)):
        monkeypatch.setattr(linear, name, function)
    return searched


def pruned(inputs, outputs, bias=True):
    layer = nn.Linear(inputs, outputs, bias).requires_grad_(False)
    layer.weight.mul_(mask_2of4(layer.weight))
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_layer_is_the_dense_one_in_values_and_layout(by_dense_products, way, bias):
    dense = pruned(32, 48, bias)
    made = Linear2of4(dense, way)
    for shape in ((1, 32), (16, 32), (5, 3, 32), (5, 3, 32), (2, 3, 4, 32)):
        x = torch.randn(shape)
        found = made(x)
        torch.testing.assert_close(found, dense(x))
        assert found.stride() == dense(x).stride()
    assert by_dense_products == [(16, way.transposed, way.bias and bias), (16, way.transposed, way.bias and bias)] + [
        (rows, way.transposed, way.bias and bias) for rows in (16, 32)
    ]


def test_a_layer_is_compiled_as_one_operation(by_dense_products):
    made, x = Linear2of4(pruned(32, 48), WAYS[0]), torch.randn(16, 32)
    expected = made(x)
    found = torch.compile(made, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(found, expected)


class Net(nn.Module):
    """first and twin are alike; unused is not called; dense is not pruned."""

    def __init__(self):
        super().__init__()
        self.conv, self.first, self.twin, self.unused = nn.Conv2d(1, 4, 1), pruned(64, 64), pruned(64, 64), pruned(64, 64)
        self.dense, self.small = nn.Linear(64, 64), pruned(64, 10)

    def forward(self, x):
        return self.small(self.dense(self.twin(self.first(x))))


@pytest.fixture
def times(monkeypatch):
    """times[type of layer, or way] -> milliseconds; a way that is not there is refused by the library."""
    found = {nn.Linear: 1.0, **dict.fromkeys(WAYS, 0.5)}

    def milliseconds(layer, x, device):
        key = layer.way if isinstance(layer, Linear2of4) else nn.Linear
        if key not in found:
            raise RuntimeError("not\nsupported")
        return found[key]

    monkeypatch.setattr(sparse, "_milliseconds", milliseconds)
    monkeypatch.setattr(sparse, "sparse_kernel", lambda weight, *others: (None, None if weight.type == "Linear" else "no kernel for it"))
    return found


def table(model):
    return {layer.name: layer for layer in sparse.layers(model, torch.randn(24, 64), "fp16")}


def test_every_layer_is_measured_or_has_a_reason(by_dense_products, times):
    times[WAYS[2]] = 0.25
    found = table(Net())
    assert {name: layer.reason for name, layer in found.items()} == {
        "conv": "no kernel for it",
        "first": None,
        "twin": None,
        "unused": "its weight is used without calling the layer",
        "dense": "not pruned to 2:4",
        "small": "10×64 is no sparse Tensor Core shape (rows % 8, columns % 16)",
    }
    for name in ("first", "twin"):
        layer = found[name]
        assert (layer.tokens, layer.dense_ms, layer.sparse_ms, layer.way, layer.pays) == (24, 1.0, 0.25, WAYS[2], True)


def test_a_way_that_the_library_refuses_is_none(by_dense_products, times):
    del times[WAYS[0]]
    assert table(Net())["first"].way in WAYS[1:]
    del times[WAYS[1]], times[WAYS[2]]
    assert (table(Net())["first"].way, table(Net())["first"].reason) == (None, "not supported")


def test_a_way_with_wrong_results_is_none(by_dense_products, times, monkeypatch):
    right = linear.mm_2of4
    monkeypatch.setattr(linear, "mm_2of4", lambda *args, **options: right(*args, **options) * 1.1)
    assert table(Net())["first"].reason.startswith("wrong result: relative error ")


def test_the_sparse_model_shares_all_other_weights(by_dense_products, times):
    model, x = Net(), torch.randn(3, 64)
    made = sparse.sparse_model(model, [table(model)["first"]])
    assert isinstance(made.first, Linear2of4)
    assert type(model.first) is nn.Linear
    assert made.twin.weight is model.twin.weight
    assert made.twin is not model.twin
    torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize(
    ("weights", "sparse_ms", "rates", "expected"),
    [
        ("dense", 0.5, {(): 1}, ()),
        ("2of4", 2.0, {True: 1}, ("first", "twin")),  # slower, and asked for
        ("auto", 2.0, {(): 1}, ()),  # no layer pays
        ("auto", 0.5, {False: 10, True: 20}, ("first", "twin")),
        ("auto", 0.5, {False: 20, True: 10}, ()),  # layers pay, and the whole does not
    ],
)
def test_choice(by_dense_products, times, monkeypatch, weights, sparse_ms, rates, expected):
    times.update(dict.fromkeys(WAYS, sparse_ms))
    monkeypatch.setattr(choose, "throughput", lambda served, x: rates[isinstance(served.model.first, Linear2of4)])
    chosen = choose.choose(Net(), torch.randn(24, 64), "fp16", weights, ["eager"], lambda part: None)
    assert (chosen.sparse, chosen.backend) == (expected, "eager")
    assert isinstance(chosen.model.first, Linear2of4) == bool(expected)
    assert len(chosen.layers) == (0 if weights == "dense" else 6)


def test_a_backend_that_is_not_possible(monkeypatch):
    def compiled(x):
        raise RuntimeError("no\nstream")

    monkeypatch.setattr(torch, "compile", lambda model, dynamic: compiled)
    x = torch.randn(2, 3)
    chosen = choose.choose(nn.ReLU(), x, "fp32", "dense", ["eager", "compile"], lambda part: None)
    assert (chosen.backend, chosen.refused) == ("eager", {"compile": "no stream"})
    with pytest.raises(UserError, match=r"^backend=compile is not possible: no stream\. Use another backend=, or auto\.$"):
        choose.choose(nn.ReLU(), x, "fp32", "dense", ["compile"], lambda part: None)
