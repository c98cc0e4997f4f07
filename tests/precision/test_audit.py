"""The audit of a step: formats by operation, FLOPs, and a run that leaves its format stops."""

from functools import partial

import pytest
import torch
from few_steps import FEW_STEPS
from torch import nn

from mpx.measure.flops import operation_flops
from mpx.precision.attention import attention
from mpx.precision.audit import Audit, complaint
from mpx.precision.emulate import Emulate
from mpx.precision.fp8 import Layers
from mpx.precision.modes import MODES
from mpx.precision.ops import Replacing


def audited(mode, model, x, *, emulate=False, autocast=None):
    audit = Audit(MODES[mode], emulate=emulate, flops_of=operation_flops)
    with audit, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast is not None):
        if emulate:
            with Emulate(MODES[mode].emulates, linears=Layers(every=True)):
                model(x).float().sum().backward()
        else:
            model(x).float().sum().backward()
    return audit


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))


X = torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize(("mode", "emulate", "fmt"), [("fp32", False, "fp32"), ("amp", True, "fp16"), ("amp_bf16", False, "bf16"),
                                                      ("tf32", True, "tf32")])  # fmt: skip
def test_calls_by_format(mode, emulate, fmt):
    audit = audited(mode, net(), X, emulate=emulate, autocast=fmt if fmt == "bf16" else None)
    assert audit.observed() == {"conv": {fmt: 2}, "matmul": {fmt: 3}}
    assert audit.as_promised() == {"conv": 1.0, "matmul": 1.0}
    assert complaint(audit) is None


def test_rows_by_hand():
    rows = audited("fp32", nn.Linear(16, 4), torch.randn(8, 16)).rows()
    by_name = {row.name: row for row in rows}
    assert by_name["addmm"].flops == 2 * 8 * 16 * 4
    assert by_name["mm"].flops == 2 * 8 * 16 * 4  # the weight's gradient; the input needs none
    assert [(row.kind, row.inputs, row.output, row.accumulator, row.tensor_cores) for row in rows] == [
        ("matmul", "fp32", "fp32", "fp32", None)
    ] * 2


def test_fp8_linear_layers():
    """Two layers in FP8, whose weights' gradients are BF16 as is the last layer."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 4))
    audit = audited("fp8", model, torch.randn(8, 16), emulate=True)
    assert audit.observed() == {"linear": {"fp8_e4m3": 3}, "matmul": {"bf16": 5}}
    assert audit.as_promised() == {"linear": 1.0, "matmul": 1.0}


@pytest.mark.parametrize("mode", ["fp8", "amp", "amp_bf16"])
def test_attention_layers_are_seen(mode):
    """nn.MultiheadAttention calls linear and attention by their names, below the modes that replace them."""
    # with dropout, which PyTorch's CPU attention runs in FP32
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    emulate = mode != "amp_bf16"
    audit = Audit(MODES[mode], emulate=emulate, flops_of=operation_flops)
    x = torch.randn(2, 5, 16, requires_grad=True)
    rounding = (
        Emulate(MODES[mode].emulates, linears=Layers(every=True))
        if emulate
        else Replacing("scaled_dot_product_attention", partial(attention, "bf16"))
    )
    with audit, torch.autocast("cpu", dtype=torch.bfloat16, enabled=not emulate), rounding:
        layer(x).float().sum().backward()
    assert complaint(audit) is None
    assert "attention" in audit.observed()
    assert ("linear" in audit.observed()) == (mode == "fp8")


def test_an_lstm_counts_as_rnn_with_all_its_flops():
    lstm, x = nn.LSTM(8, 16), torch.randn(5, 3, 8)

    class First(nn.Module):
        def forward(self, x):
            return lstm(x)[0]

    exact, emulated = audited("fp32", First(), x), audited("amp", First(), x, emulate=True)
    assert set(emulated.observed()) == {"rnn"}
    assert emulated.observed()["rnn"].keys() == {"fp16"}
    # x needs no gradient, the states between the steps do
    forward_and_weights = 2 * 2 * 5 * 3 * 4 * 16 * (8 + 16)
    assert sum(row.flops for row in emulated.rows()) >= forward_and_weights
    assert sum(row.flops for row in exact.rows()) >= forward_and_weights


@pytest.mark.parametrize("strict", [True, False])
def test_a_run_that_leaves_its_format(train, tmp_path, monkeypatch, strict):
    (tmp_path / "stray_net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.good, self.bad = nn.Linear(64, 32), nn.Linear(32, num_classes)\n\n"
        "    def forward(self, x):\n        hidden = self.good(x.flatten(1))\n"
        "        with torch.autocast(x.device.type, enabled=False):\n            return "
        "self.bad(hidden.float())\n"
    )
    monkeypatch.chdir(tmp_path)
    # also on a CPU without instructions for it; emulated, nothing leaves it
    native = ["precision=amp_bf16", "precision.emulate=never"]
    ran = train(
        "model=custom",
        "model._target_=stray_net.Net",
        *native,
        *FEW_STEPS,
        f"precision.strict={strict}".lower(),
    )
    assert ran.code == (1 if strict else 0)
    assert ("error: precision=amp_bf16 promises matmul in bf16" in ran.err) == strict
    assert ran.record["status"] == ("failed" if strict else "completed")
    assert ran.record["precision"]["audit"]["as_promised"]["matmul"] < 1
