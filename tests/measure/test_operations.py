"""What operations compute and move, against sizes worked out by hand; and the limits they are held against."""

import json

import pytest
import torch
from torch import nn

from mpx.measure import limits
from mpx.measure.ceilings import Ceilings
from mpx.measure.environment import environment
from mpx.measure.limits import Limits, limits_of
from mpx.measure.operations import Operations
from mpx.precision.modes import MODES
from mpx.precision.ops import part_of
from mpx.precision.recorder import OperationRecorder

CPU = torch.device("cpu")


def look(function, *arguments, mode="fp32", limits=None):
    with Operations(MODES[mode], CPU, limits or Limits()) as operations:
        function(*arguments)
    return {row.name: row for row in operations.rows}


@pytest.mark.parametrize(
    ("function", "shapes", "name", "flops", "moved"),
    [
        (torch.mm, [(8, 32), (32, 16)], "mm", 2 * 8 * 32 * 16, 4 * (8 * 32 + 32 * 16 + 8 * 16)),
        (torch.add, [(10, 10), (10, 10)], "add", 0, 4 * 300),
        (torch.relu_, [(100,)], "relu_", 0, 4 * 200),  # read and written in place
        (lambda x: x.fill_(1.0), [(100,)], "fill_", 0, 4 * 100),
        (lambda x, y: x.copy_(y), [(100,), (100,)], "copy_", 0, 4 * 200),
        (lambda x: x.expand(50, 100) + 1, [(100,)], "add", 0, 4 * (100 + 5000)),  # an expanded operand lies in memory once
    ],
)
def test_flops_and_bytes(function, shapes, name, flops, moved):
    row = look(function, *(torch.randn(shape) for shape in shapes))[name]
    assert (row.calls, row.flops, row.moved) == (1, flops, moved)
    assert row.multiplies is (name == "mm")
    assert row.ms > 0


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state", "ignore:The PyTorch API of nested tensors is in prototype")
def test_tensors_without_strides():
    row = look(torch.mm, torch.eye(4).to_sparse_csr(), torch.ones(4, 9))["mm"]
    stored = 4 * 4 + 8 * 4 + 8 * 5  # four values, their columns, and where the four rows begin
    assert (row.moved, row.misaligned) == (stored + 2 * 4 * 36, None)
    sparse = torch.eye(4).to_sparse()
    assert look(torch.sparse.mm, sparse, torch.ones(4, 9))["_sparse_addmm"].moved > 0
    nested = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)])
    assert look(torch.relu, nested)["relu"].moved == 4 * 2 * 20


def test_calls_hold_what_both_readers_need():
    a, b = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.int8)
    with OperationRecorder(lambda *call: (1, 2), only_products=True) as recorder, part_of("rnn", "fp16"):
        torch.mm(a, a), torch.relu(a), torch._int_mm(b.repeat(8, 8), b.repeat(8, 8))
    (call,) = recorder.calls
    assert (call.name, call.kind, call.operands, call.result) == ("mm", "matmul", (torch.bfloat16,) * 2, torch.bfloat16)
    assert (call.part_of, call.flops, call.moved, call.kernels) == (("rnn", "fp16"), 1, 2, [])


@pytest.mark.parametrize(
    ("function", "shapes", "size"),
    [
        (torch.mm, [(8, 32), (32, 20)], 20),
        (lambda x, w: x @ w.t(), [(8, 32), (20, 32)], 20),  # the result
        (lambda x, w: x.t() @ w, [(9, 16), (9, 24)], None),  # nine rows, each aligned
        (lambda x, w, b: torch.addmm(b, x, w), [(8, 16), (16, 24), (24,)], None),
        (torch.bmm, [(2, 8, 12), (2, 12, 16)], 12),
        (torch.mv, [(8, 20), (20,)], None),
        (torch.mm, [(1, 20), (20, 8)], None),
        (lambda x, w: x.expand(8, 16) @ w, [(1, 16), (16, 24)], None),
        (torch.mm, [(8, 16), (16, 1)], None),
    ],
)
def test_rows_that_are_no_multiple_of_16_bytes(function, shapes, size):
    for dtype, found in ((torch.bfloat16, size), (torch.float32, None)):
        with Operations(MODES["fp32"], CPU, Limits()) as operations:
            function(*(torch.randn(shape).to(dtype) for shape in shapes))
        assert [row.misaligned for row in operations.layers] == [found]


def test_views_move_nothing():
    assert look(lambda x: x.view(-1).t(), torch.ones(4, 4)) == {}
    assert look(lambda x, w: x @ w, torch.ones(2, 3, 4), torch.ones(4, 5)).keys() == {"mm"}
    assert look(torch.empty_like, torch.ones(4, 4)) == {}


def test_a_fused_optimizer_reads_gradients_and_writes_none():
    weight = nn.Parameter(torch.ones(10, 10))
    weight.grad = torch.ones(10, 10)
    optimizer = torch.optim.AdamW([weight], fused=True)
    optimizer.step()
    assert look(optimizer.step)["_fused_adamw_"].moved == 4 * 100 * 7 + 4  # weight and two moments both ways; a step count


def test_an_embedding_reads_the_rows_that_it_gives_back():
    row = look(nn.functional.embedding, torch.tensor([3, 5]), torch.ones(1000, 16))["embedding"]
    assert row.moved == 2 * (2 * 16 * 4) + 2 * 8


def test_backward_and_formats():
    layer, x = nn.Linear(16, 8), torch.randn(4, 16)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(x).float().sum()
        loss.backward()

    rows = look(step, mode="amp_bf16")
    assert rows["addmm"].fmt == rows["mm"].fmt == "bf16"
    assert look(torch.mm, torch.ones(2, 2), torch.ones(2, 2), mode="tf32")["mm"].fmt == "tf32"


def test_layers_are_apart_by_shape():
    a, b = torch.ones(8, 8), torch.ones(8, 16)
    with Operations(MODES["fp32"], CPU, Limits()) as operations:
        torch.mm(a, a), torch.mm(a, b), torch.relu(a), torch.mm(a, a)
    assert [(row.name, row.calls, row.flops) for row in operations.layers] == [("mm", 2, 2 * 1024), ("mm", 1, 2048)]
    assert [row.calls for row in operations.rows if row.name == "mm"] == [3]


def test_share_of_the_roofline():
    limits = Limits({"fp32": 1e9}, 1e9, "made up")
    rows = look(lambda x: (x @ x, x + x), torch.randn(64, 64), limits=limits)
    product, added = rows["mm"], rows["add"]
    assert (product.bound, added.bound) == ("arithmetic", "memory")
    assert product.least_ms == pytest.approx(2 * 64**3 / 1e9 * 1e3)
    assert added.least_ms == pytest.approx(3 * 64 * 64 * 4 / 1e9 * 1e3)
    assert added.roofline == added.least_ms / added.ms


def test_unknown_limits_are_none():
    assert Limits().least_s(10, 10, "fp32") == (None, None)
    assert Limits({"fp32": 10.0}).least_s(20, 10**9, "fp32") == (2.0, "arithmetic")  # memory unknown: a product has its arithmetic
    assert Limits({"fp32": 10.0}).least_s(0, 10**9, "fp32") == (None, None)
    assert Limits({"fp32": 10.0}, 1.0).least_s(20, 10, "bf16") == (None, None)


def test_limits_of_a_cpu_come_from_mpx_bench(tmp_path):
    assert limits_of(CPU, tmp_path).flops_per_s == {}
    assert "none measured: run python -m mpx.bench what=gemm and what=copy" in limits_of(CPU, tmp_path).reason
    (tmp_path / "bench").mkdir()
    about = {"device": "cpu", "size": "auto", "exclusive": None, "environment": environment()}
    rows = [{"format": "fp32", "tflops_per_s": 0.1}, {"format": "tf32", "tflops_per_s": None}]
    (tmp_path / "bench" / "gemm.json").write_text(json.dumps(about | {"rows": rows}))
    found = limits_of(CPU, tmp_path)
    assert found.flops_per_s == {"fp32": pytest.approx(1e11)}
    assert (found.bytes_per_s, found.reason) == (None, "python -m mpx.bench what=copy was not run here")
    (tmp_path / "bench" / "copy.json").write_text(json.dumps(about | {"rows": [{"mib": 256, "gb_per_s": 16.0}]}))
    found = limits_of(CPU, tmp_path)
    assert (found.bytes_per_s, found.source, found.reason) == (pytest.approx(16e9), "measured here by mpx.bench", None)


def test_formats_that_a_cards_sheet_leaves_out_have_what_was_measured_on_it(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GeForce RTX 3090")
    card = limits_of(torch.device("cuda"), tmp_path)
    assert card.source == "NVIDIA GA102 whitepaper"
    assert "fp16" not in card.flops_per_s
    measured = Ceilings(900.0, {"fp16": 60.0, "fp32": 30.0})
    monkeypatch.setattr(limits, "ceilings", lambda output_dir, device: measured)
    found = limits_of(torch.device("cuda"), tmp_path)
    assert found.flops_per_s == dict(card.flops_per_s) | {"fp16": 60e12}
    assert (found.bytes_per_s, found.source) == (card.bytes_per_s, "NVIDIA GA102 whitepaper; fp16 measured here by mpx.bench")
