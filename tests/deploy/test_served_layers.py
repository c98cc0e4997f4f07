"""Layers by products, and the choice among them, with cuSPARSELt's products replaced by dense ones; tests/gpu has the real kernels."""

import functools
import math

import pytest
import torch
from int8_products import EXACT_INT8
from torch import nn

from mpx.deploy import calibrate, choose, kernel_times, products, recurrent, serve
from mpx.deploy.backends import Callers
from mpx.deploy.kernel_times import OWN_KERNEL
from mpx.deploy.kernels import Kernel, dense_kernels, sparse_kernels
from mpx.deploy.layers import LinearRows, Rows
from mpx.deploy.products import EPILOGUES
from mpx.errors import UserError
from mpx.sparsity.kernels import unsupported_layer
from mpx.sparsity.patterns import mask_2of4

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


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
        assert (out_dtype is not None) == (packed.dtype == torch.int8)  # the library takes one for operands of 8 bits only
        found = packed.float() @ b.float() * (1 if scale is None else scale[:, None]) + (0 if bias is None else bias[:, None])
        return found.t().contiguous() if transposed else found

    monkeypatch.setattr(products, "compress_2of4", torch.clone)
    monkeypatch.setattr(products, "mm_2of4", product)
    monkeypatch.setattr(products, "fastest", lambda problem: searched.append(problem) or 7)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: True)
    return searched


def pruned(layer):
    layer.requires_grad_(False).weight.mul_(mask_2of4(layer.weight))
    return layer


LAYERS = {
    "linear": (lambda bias: nn.Linear(32, 64, bias), [(1, 32), (16, 32), (5, 3, 32), (2, 3, 4, 32)]),
    "1×1": (lambda bias: nn.Conv2d(32, 64, 1, bias=bias), [(1, 32, 1, 1), (4, 32, 6, 5)]),
    "1×1, stride 2": (lambda bias: nn.Conv2d(32, 64, 1, (2, 1), bias=bias), [(2, 32, 7, 7)]),
    "3×3": (lambda bias: nn.Conv2d(32, 64, 3, padding=1, bias=bias), [(1, 32, 4, 4), (3, 32, 9, 7)]),
    "5×3, stride 2": (lambda bias: nn.Conv2d(32, 64, (5, 3), 2, (2, 0), bias=bias), [(3, 32, 9, 7)]),
}
KERNELS = [Kernel("fp16"), Kernel("int8"), *(Kernel(fmt, way) for fmt in ("fp16", "int8") for way in EPILOGUES)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_dense_one_in_values_and_layout(by_dense_products, name, kernel, bias):
    make, shapes = LAYERS[name]
    dense = pruned(make(bias))
    for shape in shapes:
        x = torch.randn(shape)
        x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and name != "linear" else x
        expected = dense(x)
        found = kernel.serve(dense, x.abs().max().item())(x)
        assert (found - expected).norm() <= (0.03 if kernel.quantised else 1e-6) * expected.norm()
        layout = torch.contiguous_format if name == "linear" else torch.channels_last
        assert found.is_contiguous(memory_format=layout)
    if kernel.sparse:
        assert {(problem.bias, problem.scaled, problem.transposed) for problem in by_dense_products} == {
            (bias and kernel.epilogue.bias, kernel.quantised, kernel.epilogue.transposed)
        }


def test_int8_is_exact_for_numbers_that_it_holds():
    dense = nn.Linear(16, 16).requires_grad_(False)
    dense.weight.copy_(torch.randint(-127, 128, (16, 16)) / 127)
    dense.weight[:, 0] = 1.0
    x = torch.randint(-127, 128, (32, 16)).float()
    torch.testing.assert_close(Kernel("int8").serve(dense, 127.0)(x), dense(x), rtol=1e-5, atol=1e-4)


def test_larger_inputs_are_cut():
    dense = nn.Linear(8, 8, bias=False).requires_grad_(False)
    dense.weight.copy_(torch.eye(8))
    found = Kernel("int8").serve(dense, 2.0)(torch.tensor([[5.0, -5.0, 1.0, 0, 0, 0, 0, 0]]))
    torch.testing.assert_close(found[0, :3], torch.tensor([2.0, -2.0, 1.0]), rtol=0.01, atol=0)


def test_a_layer_is_compiled_as_one_operation(by_dense_products):
    made, x = Kernel("fp16", EPILOGUES[0]).serve(pruned(nn.Linear(32, 64)), 1.0), torch.randn(32, 32)
    expected = made(x)
    torch.testing.assert_close(torch.compile(made, backend="aot_eager", fullgraph=True)(x), expected)


LSTM = "cuDNN computes the recurrence of an LSTM, and so the input projections of packed sequences, with dense weights only"
GRU = "cuDNN computes the input projections and the recurrence of an GRU in one call, which takes dense weights only"


class Derived(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Linear(4, 4), None),
        (nn.Conv2d(4, 4, 3), None),
        (Derived(4, 4), "its class is derived from Linear and may do more"),
        (nn.LSTM(4, 4), LSTM),
        (nn.GRU(4, 4), GRU),
        (
            nn.MultiheadAttention(4, 2),
            "MultiheadAttention multiplies its weights itself; only self-attention of one input is served by other kernels",
        ),
        (nn.Bilinear(4, 4, 4), "no kernel for Bilinear"),
        (nn.Conv2d(4, 4, 3, groups=2), "no kernel for a convolution in groups"),
        (nn.Conv2d(4, 4, 3, dilation=2), "no kernel for a convolution with dilation or other padding than zeros"),
        (nn.Conv2d(4, 4, 3, padding="same"), "no kernel for a convolution with dilation or other padding than zeros"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "no kernel for a convolution with dilation or other padding than zeros"),
    ],
)
def test_layers_that_no_product_replaces(layer, reason):
    assert unsupported_layer(layer) == reason


@pytest.mark.parametrize(
    ("layer", "fmt", "reason"),
    [
        (pruned(nn.Linear(64, 64)), "fp32", "cuSPARSELt has no fp32"),
        (pruned(nn.Linear(64, 64)), "fp8", "PyTorch's 2:4 products of FP8 take no scale"),
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


def test_devices_without_2of4(by_dense_products, monkeypatch):
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: False)
    assert sparse_kernels(pruned(nn.Linear(64, 64)), "fp16", CUDA)[1] == "this PyTorch was built without cuSPARSELt"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "V100")
    assert sparse_kernels(pruned(nn.Linear(64, 64)), "fp16", CUDA)[1] == "V100 has no sparse Tensor Cores"


def test_dense_kernels():
    assert dense_kernels(nn.Linear(12, 16), "int8") == ([], "16×12: int8 needs multiples of 8")
    assert dense_kernels(nn.Linear(16, 16), "fp8") == ([Kernel("fp8")], None)
    assert dense_kernels(nn.Conv2d(16, 16, 1), "bf16") == ([Kernel("bf16")], None)
    assert dense_kernels(nn.Conv2d(16, 16, 3), "bf16") == dense_kernels(nn.Linear(16, 16), "bf16") == ([], None)


class Net(nn.Module):
    """first and twin are alike; unused is not called; dense is not pruned."""

    def __init__(self):
        super().__init__()
        self.lstm, self.first, self.twin, self.unused = nn.LSTM(4, 4), *(pruned(nn.Linear(64, 64)) for _ in range(3))
        self.dense, self.small = nn.Linear(64, 64), pruned(nn.Linear(64, 10))

    def forward(self, x):
        return self.small(self.dense(self.twin(self.first(x))))


@pytest.fixture
def times(by_dense_products, monkeypatch):
    """times[OWN_KERNEL, or an epilogue of a 2:4 product, or None for a dense product] -> ms; the library refuses all others."""
    found = {OWN_KERNEL: 1.0, None: 2.0, **dict.fromkeys(EPILOGUES, 0.5)}

    def milliseconds(call, x, device):
        key = getattr(call.__self__.product, "epilogue", None) if isinstance(getattr(call, "__self__", None), Rows) else OWN_KERNEL
        if key not in found:
            raise RuntimeError("not\nsupported")
        return found[key]

    unfit = kernel_times._unfit
    monkeypatch.setattr(kernel_times, "_milliseconds", milliseconds)
    monkeypatch.setattr(kernel_times, "_unfit", lambda model, name, reason, device: unfit(model, name, reason, CUDA))
    return found


def measured(model=None, fmt="bf16", sparse=True, shape=(24, 64), **options):
    with torch.no_grad():
        return {layer.name: layer for layer in kernel_times.layers(model or Net(), torch.randn(shape), fmt, sparse=sparse, **options)}


def test_every_layer_is_measured_or_has_a_reason(times):
    times[EPILOGUES[2]] = 0.25
    found = measured()
    assert {name: layer.reason for name, layer in found.items()} == {
        "lstm.weight_ih_l0": LSTM,
        "lstm.weight_hh_l0": LSTM,
        "first": None,
        "twin": None,
        "unused": "its weight is used without calling the layer",
        "dense": "not pruned to 2:4",
        "small": "10×64: 2:4 bf16 needs multiples of 16",
    }
    for name in ("first", "twin"):
        assert found[name].rows == 24
        assert found[name].ms == {OWN_KERNEL: 1.0} | {f"bf16 2:4 {way}": 0.25 if way == EPILOGUES[2] else 0.5 for way in EPILOGUES}
        assert found[name].fastest(lambda kernel: True) == f"bf16 2:4 {EPILOGUES[2]}"


def test_a_way_that_the_library_refuses_is_none(times):
    del times[EPILOGUES[0]]
    assert measured()["first"].refused == {f"bf16 2:4 {EPILOGUES[0]}": "not supported"}
    del times[EPILOGUES[1]], times[EPILOGUES[2]]
    first = measured()["first"]
    assert (first.kernels, first.reason) == ({}, "not supported")


def test_a_way_with_wrong_results_is_none(times, monkeypatch):
    right = products.mm_2of4
    monkeypatch.setattr(products, "mm_2of4", lambda *args, **options: right(*args, **options) * 1.2)
    for fmt in ("bf16", "int8"):
        assert measured(fmt=fmt)["first"].reason.startswith("wrong result: relative error ")


def test_layers_that_are_not_replaced_are_shared(times):
    model, x = Net(), torch.randn(3, 64)
    made = kernel_times.with_kernels(model, {"first": Kernel("fp16", EPILOGUES[0])}, {})
    assert isinstance(made.first, Rows)
    assert type(model.first) is nn.Linear
    assert made.twin.weight is model.twin.weight
    assert made.twin is not model.twin
    torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize(
    ("fmt", "weights", "changes", "expected"),  # layers: s sparse, d dense
    [
        ("bf16", "dense", {}, {"own kernels": {}}),
        ("bf16", "2of4", dict.fromkeys(EPILOGUES, 3.0), {"2:4 kernels": {"first": "s", "twin": "s"}}),  # slower, and asked for
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
    assert {plan: {name: "s" if kernel.sparse else "d" for name, kernel in kernels.items()} for plan, kernels in found.items()} == expected


class Recurrent(nn.Module):
    """With weights that are 2:4."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True).requires_grad_(False)
        for weight in self.lstm.parameters():
            weight.mul_(mask_2of4(weight) if weight.dim() == 2 else 1)
        self.out = pruned(nn.Linear(128, 64))

    def forward(self, x):
        return self.out(self.lstm(x)[0].mean(1))


PROJECTIONS = [f"lstm.weight_ih_l{end}" for end in ("0", "0_reverse", "1", "1_reverse")]


@pytest.mark.parametrize("fmt", ["bf16", "int8"])
def test_projections_of_an_lstm_are_layers(times, fmt):
    """They are timed, and what is served by other kernels computes what nn.LSTM does. Its weights are not kept beside the packed ones."""
    model, x = Recurrent().eval(), torch.randn(4, 9, 32)
    assert recurrent.projections(model, x) == PROJECTIONS
    assert {layer.reason for name, layer in measured(model, fmt, shape=x.shape).items() if "lstm" in name} == {LSTM}
    found = measured(model, fmt, shape=x.shape, projections=PROJECTIONS)
    assert {name: layer.reason for name, layer in found.items() if layer.reason} == {name.replace("ih", "hh"): LSTM for name in PROJECTIONS}
    assert {found[name].rows for name in PROJECTIONS} == {4 * 9}
    (plan,) = choose.plans(list(found.values()), fmt, "2of4", PROJECTIONS).values()
    with torch.no_grad():
        ranges = calibrate.ranges(recurrent.apart(model, PROJECTIONS), lambda: [x], fmt) if fmt == "int8" else {}
        made = kernel_times.with_kernels(model, plan, ranges)
        torch.testing.assert_close(made(x), model(x), rtol=0, atol=0.01 if fmt == "int8" else 1e-5)
    assert [type(made.get_submodule(name)).__name__ for name in (*PROJECTIONS, "out")] == ["LinearRows"] * 5
    assert not {name for name in made.state_dict() if name.endswith(("weight_ih_l0", "weight_ih_l0.weight"))}
    assert type(kernel_times.with_kernels(model, {"out": plan["out"]}, ranges).lstm) is nn.LSTM
    assert type(model.lstm) is nn.LSTM


def test_the_size_of_an_lstm_is_that_of_what_serves_it(times):
    """cuDNN's parameters lie in one piece of memory."""
    model = Recurrent().eval()
    plain = list(model.lstm.parameters())
    for parameter, part in zip(plain, torch.cat([one.flatten() for one in plain]).split([one.numel() for one in plain]), strict=True):
        parameter.data = part.view_as(parameter)
    made = kernel_times.with_kernels(model, dict.fromkeys(PROJECTIONS, Kernel("int8")), {})
    values = sum(parameter.nbytes for parameter in made.state_dict().values())
    size = serve._size_and_quantised(made, choose.Choice("eager", {}, [], {}, {}), None)["weights_gib"] * 2**30
    assert size == values
    assert model.lstm.weight_hh_l0 is plain[1]


def test_an_lstm_leaves_cudnns_memory_and_keeps_what_lies_elsewhere():
    """A copy of a packed weight would lose the memory behind it."""
    plain = nn.LSTM(8, 4, 1)
    memory = torch.cat([one.detach().flatten() for one in plain.parameters()])
    for parameter, part in zip(plain.parameters(), memory.split([one.numel() for one in plain.parameters()]), strict=True):
        parameter.data = part.view_as(parameter)
    layer = recurrent.Lstm(plain)
    packed = torch.zeros(1000)[:128].view(16, 8)
    layer.weight_ih_l0 = LinearRows(products.Product(packed, plain.bias_ih_l0.detach()))
    layer.leave_cudnns_memory()
    assert layer.weight_ih_l0.product.weight is packed
    bias = layer.weight_ih_l0.product.bias
    assert torch.equal(bias, plain.bias_ih_l0)
    for tensor in (bias, layer.weight_hh_l0, layer.bias_hh_l0):
        assert tensor.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()


def test_which_layers_are_said_to_be_sparse_and_quantised():
    kernels = {"a": Kernel("bf16"), "b": Kernel("int8"), "c": Kernel("int8", EPILOGUES[0]), "d": Kernel("bf16", EPILOGUES[0])}
    table = [kernel_times.Layer(name, (4, 4)) for name in "abcde"]
    choice = choose.Choice("graph", kernels, table, {}, {})
    found = serve._chosen(choice)
    assert (found["backend"], found["sparse_layers"]) == ("graph", ["c", "d"])
    assert serve._size_and_quantised(nn.Linear(2, 2), choice, None)["quantised_layers"] == ["b", "c"]
    assert [layer["served"] for layer in found["layers"]] == [*map(str, kernels.values()), OWN_KERNEL]


def test_plans_of_an_lstm(times):
    found = list(measured(Recurrent().eval(), "int8", shape=(4, 9, 32), projections=PROJECTIONS).values())
    both, linear = {*PROJECTIONS, "out"}, {"out"}
    assert {plan: set(kernels) for plan, kernels in choose.plans(found, "int8", "auto", PROJECTIONS).items()} == {
        "own kernels": set(),
        "dense kernels": both,
        "fastest kernels": both,
        "dense kernels, LSTMs by cuDNN": linear,
        "fastest kernels, LSTMs by cuDNN": linear,
    }
    only = [layer for layer in found if layer.name != "out"]  # 8 bits were asked for
    assert list(choose.plans(only, "int8", "dense", PROJECTIONS)) == ["dense kernels"]


def test_fp16_is_never_written_transposed(by_dense_products):
    """Such products hang."""
    layer = pruned(nn.Linear(64, 64))
    assert [kernel.epilogue for kernel in sparse_kernels(layer, "fp16", CUDA)[0]] == [EPILOGUES[2]]
    assert [kernel.epilogue for kernel in sparse_kernels(layer, "bf16", CUDA)[0]] == list(EPILOGUES)


@pytest.mark.parametrize(("fmt", "message"), [("fp16", "weights=2of4: no layer"), ("int8", "format=int8: no layer")])
def test_no_layer_can_be_served_so(fmt, message):
    found = [kernel_times.Layer("0", (9, 9), reason="not pruned to 2:4", refused={"int8": "9×9: int8 needs multiples of 8"})]
    with pytest.raises(UserError, match=message):
        choose.plans(found, fmt, "2of4" if fmt == "fp16" else "dense")


@pytest.mark.parametrize("fastest", ["own kernels", "fastest kernels"])
def test_the_fastest_as_a_whole_is_chosen(times, monkeypatch, fastest):
    rates = {False: 20 if fastest == "own kernels" else 10, True: 15}
    monkeypatch.setattr(choose, "plans", lambda *args: {"own kernels": {}, "fastest kernels": {"first": Kernel("fp16", EPILOGUES[0])}})
    monkeypatch.setattr(choose, "throughput", lambda served, x: rates[isinstance(served.model.first, Rows)])
    callers = Callers("fp16", CPU, "image", lambda: iter(()))
    with torch.no_grad():
        chosen = choose.choose(Net(), torch.randn(24, 64), "fp16", "auto", ["eager"], callers, {}, lambda part: None)
    assert chosen.candidates == {"eager, own kernels": rates[False], "eager, fastest kernels": 15}
    assert list(chosen.kernels) == ([] if fastest == "own kernels" else ["first"])


@pytest.fixture
def choosing(times, monkeypatch):
    """choosing(fmt, weights, times by epilogue, largest, backends) -> the choice. A model is as fast as its layers."""
    model = Net()

    def milliseconds(layer):
        return times[getattr(layer.product, "epilogue", None) if isinstance(layer, Rows) else OWN_KERNEL]

    def rate(served, x):
        return 1 / sum(milliseconds(layer) for layer in (served.model.first, served.model.twin))

    class Callers:
        def __init__(self, model, backend):
            self.model = model

        def __call__(self, x):
            return x

    plans = choose.plans
    monkeypatch.setattr(choose, "throughput", rate)
    monkeypatch.setattr(choose, "plans", lambda table, fmt, *rest: plans(table, found[0], *rest))
    found = []

    def run(fmt, weights, changes, largest=None, backends=("eager",)):
        times.update(changes)
        found[:] = [fmt if largest is None else "bf16"]  # a CPU has no kernels of 8 bits
        with torch.no_grad():
            return choose.choose(model, torch.randn(24, 64), fmt, weights, list(backends), Callers, {}, lambda part: None, (), largest)

    return run


def kinds(choice):
    return {name: ("2:4 " if kernel.sparse else "") + kernel.fmt for name, kernel in choice.kernels.items()}


SLOW, FAST = dict.fromkeys(EPILOGUES, 3.0), dict.fromkeys(EPILOGUES, 0.5)


def test_each_batch_size_has_its_own_kernels(choosing):
    large = choosing("bf16", "auto", FAST)
    assert kinds(large) == {"first": "2:4 bf16", "twin": "2:4 bf16"}
    small = choosing("bf16", "auto", SLOW, large)
    assert (kinds(small), {layer.ms.get(OWN_KERNEL) for layer in small.layers if layer.name in ("first", "twin")}) == ({}, {1.0})
    assert kinds(choosing("bf16", "auto", FAST, small)) == kinds(large)  # also where none was faster at the largest


def test_the_same_layers_have_8_bits_at_every_batch_size(choosing):
    """The accuracy is that of the largest one. There, 8 bits are 2:4 and pay in the pruned layers; elsewhere each may be the fastest."""
    large = choosing("int8", "auto", FAST | {None: 2.0})
    assert kinds(large) == {"first": "2:4 int8", "twin": "2:4 int8"}
    small = choosing("int8", "auto", SLOW | {None: 2.0}, large)  # slower than in 16 bits
    assert kinds(small) == {"first": "int8", "twin": "int8"}
    assert small.layers[-2].ms[OWN_KERNEL] == 1.0  # the table has all
    of_16_bits = choosing("int8", "auto", SLOW)
    assert kinds(of_16_bits) == {}
    assert kinds(choosing("int8", "auto", FAST, of_16_bits, ("eager", "compile"))) == {}


def test_a_batch_size_whose_layers_take_no_2of4_kernel_has_those_of_the_largest(choosing, times):
    """It is then the whole model that is possible or not at that size; at the largest, 2:4 is."""
    large = choosing("bf16", "2of4", FAST)
    for way in EPILOGUES:
        del times[way]
    (kernels,) = choose._plans_alike(list(measured().values()), "2of4", (), large).values()
    assert kernels == large.kernels != {}


@pytest.mark.parametrize("off", [("compile",), ("eager", "compile")])
def test_the_fastest_is_not_taken_for_wrong_outputs(monkeypatch, off):
    """Unless all have them: then the samples make the difference."""
    monkeypatch.setattr(choose, "throughput", lambda served, x: {"eager": 1.0, "compile": 2.0}[served("backend")])

    def call_by(model, backend):
        return lambda x: backend if isinstance(x, str) else torch.full((2,), float(backend in off))

    differs = functools.partial(serve._differs, torch.full((2,), 1e-9), 10.0)
    chosen = choose.choose(nn.ReLU(), torch.randn(2, 3), "fp32", "dense", ["eager", "compile"], call_by, {}, print, differs=differs)
    reason = "wrong result: relative error 1.0e+09, more than 1.0e+01"
    if len(off) == 1:
        assert (chosen.backend, chosen.candidates, chosen.refused) == ("eager", {"eager": 1.0}, {"compile": reason})
    else:
        assert (chosen.backend, chosen.candidates, chosen.refused) == ("compile", {"eager": 1.0, "compile": 2.0}, {})
    assert serve._differs(torch.ones(2), math.inf, torch.tensor([1.0, math.nan])) == "its outputs are not finite"


@pytest.mark.parametrize(("fmt", "weights"), [("bf16", "2of4"), ("int8", "dense")])
def test_what_has_no_choice_is_not_measured_again(choosing, monkeypatch, fmt, weights):
    large = choosing(fmt, weights, FAST)
    monkeypatch.setattr(choose, "layers", None)
    small = choosing(fmt, weights, SLOW, large)
    assert (small.kernels, small.layers, small.candidates) == (large.kernels, [], {})


@pytest.mark.slow
def test_a_backend_that_is_not_possible(monkeypatch):
    def compiled(x):
        raise RuntimeError("no\nstream")

    monkeypatch.setattr(torch, "compile", lambda model, dynamic, options=None: compiled)
    x, callers = torch.randn(2, 3), Callers("fp32", CPU, "image", lambda: iter(()))
    chosen = choose.choose(nn.ReLU(), x, "fp32", "dense", ["eager", "compile"], callers, {}, lambda part: None)
    assert (chosen.backend, chosen.refused) == ("eager", {"compile": "no stream"})
    for largest, message in (
        (None, "backend=compile is not possible: no stream. Use another backend=, or auto."),
        (chosen, "batch=2 is not possible by backend=compile: no stream. Leave that size out."),
    ):
        with pytest.raises(UserError) as error:
            choose.choose(nn.ReLU(), x, "fp32", "dense", ["compile", "autotune"], callers, {}, lambda part: None, largest=largest)
        assert str(error.value) == message


def test_kernels_have_names():
    assert [str(kernel) for kernel in (Kernel("int8"), Kernel("bf16", EPILOGUES[0]))] == [
        "int8 matrix product",
        "bf16 2:4 written, bias within",
    ]
