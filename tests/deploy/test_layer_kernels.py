"""Layers by products, with cuSPARSELt's products replaced by dense ones; tests/gpu has the real kernels."""

import pytest
import torch
from int8_products import EXACT_INT8
from torch import nn

from mpx.deploy import choose, kernels, products
from mpx.deploy.kernels import Kernel, LinearRows, Rows, sparse_kernels, with_kernels
from mpx.deploy.products import EPILOGUES
from mpx.sparsity.patterns import mask_2of4

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def exact_int8_products(monkeypatch):
    if not EXACT_INT8:
        monkeypatch.setattr(products, "int_mm", lambda a, b: a.int() @ b.int())


@pytest.fixture
def by_dense_products(monkeypatch):
    """What was searched for."""
    searched = []

    def product(packed, b, out_dtype, *, bias, scale, transposed, alg_id):
        assert alg_id == 7
        assert b.shape[1] % 32 == 0
        # the library takes one for operands of 8 bits only
        assert (out_dtype is not None) == (packed.dtype == torch.int8)
        found = packed.float() @ b.float() * (1 if scale is None else scale[:, None]) + (
            0 if bias is None else bias[:, None]
        )
        return found.t().contiguous() if transposed else found

    monkeypatch.setattr(products, "compress_2of4", torch.clone)
    monkeypatch.setattr(products, "mm_2of4", product)
    monkeypatch.setattr(products, "fastest", lambda problem: searched.append(problem) or 7)
    monkeypatch.setattr(kernels, "unsupported_device", lambda device: None)
    return searched


def pruned(layer):
    layer.requires_grad_(False).weight.mul_(mask_2of4(layer.weight))
    return layer


LAYERS = {
    "linear": (lambda bias: nn.Linear(32, 64, bias), [(1, 32), (16, 32), (2, 3, 4, 32)]),
    "1×1": (lambda bias: nn.Conv2d(32, 64, 1, bias=bias), [(1, 32, 1, 1), (4, 32, 6, 5)]),
    "1×1, stride 2": (lambda bias: nn.Conv2d(32, 64, 1, (2, 1), bias=bias), [(2, 32, 7, 7)]),
    "5×3, stride 2": (lambda bias: nn.Conv2d(32, 64, (5, 3), 2, (2, 0), bias=bias), [(3, 32, 9, 7)]),
}
KERNELS = [Kernel("int8"), *(Kernel(fmt, way) for fmt in ("fp16", "int8") for way in EPILOGUES)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_dense_one_in_values_and_layout(by_dense_products, name, kernel, bias):
    make, shapes = LAYERS[name]
    dense = pruned(make(bias))
    layout = torch.contiguous_format if name == "linear" else torch.channels_last
    for shape in shapes:
        x = torch.randn(shape).contiguous(memory_format=layout)
        expected = dense(x)
        found = kernel.serve(dense, x.abs().max().item())(x)
        assert (found - expected).norm() <= (0.03 if kernel.quantised else 1e-6) * expected.norm()
        assert found.is_contiguous(memory_format=layout)
    if kernel.sparse:
        assert {(problem.bias, problem.scaled, problem.transposed) for problem in by_dense_products} == {
            (bias and kernel.epilogue.bias, kernel.quantised, kernel.epilogue.transposed)
        }


@pytest.mark.parametrize(
    ("layer", "fmt", "reason"),
    [
        (pruned(nn.Linear(64, 64)), "fp32", "cuSPARSELt has no fp32"),
        (nn.Linear(64, 64), "fp16", "not pruned to 2:4"),
        (pruned(nn.Linear(64, 24)), "fp16", "24×64: 2:4 fp16 needs multiples of 16"),
        (pruned(nn.Linear(48, 64)), "int8", "64×48: 2:4 int8 needs multiples of 32"),
        (pruned(nn.Linear(64, 64)), "bf16", None),
        (pruned(nn.Conv2d(16, 32, 3)), "fp16", None),
    ],
)
def test_why_a_layer_has_no_2of4_kernel(by_dense_products, layer, fmt, reason):
    found, why = sparse_kernels(layer, fmt, CUDA)
    assert why == reason
    assert bool(found) == (reason is None)


def test_fp16_is_never_written_transposed(by_dense_products):
    """Such products hang."""
    layer = pruned(nn.Linear(64, 64))
    assert [kernel.epilogue for kernel in sparse_kernels(layer, "fp16", CUDA)[0]] == [EPILOGUES[2]]
    assert [kernel.epilogue for kernel in sparse_kernels(layer, "bf16", CUDA)[0]] == list(EPILOGUES)


class Net(nn.Module):
    """first and twin are alike; unused is not called; dense is not pruned."""

    def __init__(self):
        super().__init__()
        self.first, self.twin, self.unused = (pruned(nn.Linear(64, 64)) for _ in range(3))
        self.dense, self.small = nn.Linear(64, 64), pruned(nn.Linear(64, 10))

    def forward(self, x):
        return self.small(self.dense(self.twin(self.first(x))))


@pytest.fixture
def times(by_dense_products, monkeypatch):
    """times["own", or an epilogue of a 2:4 product, or None for a dense product] -> ms; the library refuses
    all others.
    """
    found = {"own": 1.0, None: 2.0, **dict.fromkeys(EPILOGUES, 0.5)}

    def milliseconds(call, x, device):
        key = (
            getattr(call.__self__.product, "epilogue", None)
            if isinstance(getattr(call, "__self__", None), Rows)
            else "own"
        )
        if key not in found:
            raise RuntimeError("not\nsupported")
        return found[key]

    monkeypatch.setattr(kernels, "_milliseconds", milliseconds)
    return found


def measured(fmt="bf16", sparse=True):
    with torch.no_grad():
        return {layer.name: layer for layer in kernels.layers(Net(), torch.randn(24, 64), fmt, sparse=sparse)}


def test_every_layer_is_measured_or_has_a_reason(times):
    times[EPILOGUES[2]] = 0.25
    found = measured()
    assert {name: layer.reason for name, layer in found.items()} == {
        "first": None,
        "twin": None,
        "unused": "its weight is used without calling the layer",
        "dense": "not pruned to 2:4",
        "small": "10×64: 2:4 bf16 needs multiples of 16",
    }
    for name in ("first", "twin"):
        assert (found[name].rows, found[name].own_ms) == (24, 1.0)
        assert found[name].ms == {
            Kernel("bf16", way): 0.25 if way == EPILOGUES[2] else 0.5 for way in EPILOGUES
        }
        fastest = found[name].fastest(lambda kernel: True)
        assert fastest == Kernel("bf16", EPILOGUES[2])
        served = found[name].record({name: fastest})
        assert (served["served"], served["ms"]["own"]) == (f"bf16 2:4 {EPILOGUES[2]}", 1.0)


def test_a_way_that_the_library_refuses_is_none(times):
    del times[EPILOGUES[0]]
    assert measured()["first"].refused == {f"bf16 2:4 {EPILOGUES[0]}": "not supported"}
    del times[EPILOGUES[1]], times[EPILOGUES[2]]
    first = measured()["first"]
    assert (first.ms, first.reason) == ({}, "not supported")


def test_a_way_with_wrong_results_is_none(times, monkeypatch):
    right = products.mm_2of4
    monkeypatch.setattr(products, "mm_2of4", lambda *args, **options: right(*args, **options) * 1.2)
    for fmt in ("bf16", "int8"):
        assert measured(fmt=fmt)["first"].reason.startswith("wrong result: relative error ")


def test_chosen_kernels_replace_their_layers(by_dense_products):
    model, x = Net(), torch.randn(3, 64)
    expected = model(x)
    assert isinstance(with_kernels(model, {"first": Kernel("fp16", EPILOGUES[0])}, {}).first, LinearRows)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("fmt", "weights", "changes", "expected"),  # layers: s sparse, d dense
    [
        ("bf16", "dense", {}, {"own kernels": {}}),
        # slower, and asked for
        ("bf16", "2of4", dict.fromkeys(EPILOGUES, 3.0), {"2:4 kernels": {"first": "s", "twin": "s"}}),
        ("bf16", "auto", dict.fromkeys(EPILOGUES, 3.0), {"own kernels": {}}),
        ("bf16", "auto", {}, {"own kernels": {}, "fastest kernels": {"first": "s", "twin": "s"}}),
        ("int8", "dense", {}, {"dense kernels": {"first": "d", "twin": "d", "dense": "d"}}),
        ("int8", "2of4", {None: 0.8}, {"2:4 kernels": {"first": "s", "twin": "s", "dense": "d"}}),
        (
            "int8",
            "auto",
            {},
            {
                "own kernels": {},
                "dense kernels": {"first": "d", "twin": "d", "dense": "d"},
                "fastest kernels": {"first": "s", "twin": "s"},
            },
        ),
    ],
)
def test_plans(times, fmt, weights, changes, expected):
    times.update(changes)
    found = choose.plans(list(measured(fmt=fmt, sparse=weights != "dense").values()), fmt, weights)
    assert {
        plan: {name: "s" if kernel.sparse else "d" for name, kernel in chosen.items()}
        for plan, chosen in found.items()
    } == expected
