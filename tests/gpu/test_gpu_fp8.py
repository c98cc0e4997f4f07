"""On a CUDA device with FP8: linear layers give what the emulation gives, also compiled, and a run says which
layers they are.
"""

import pytest
import torch
from few_steps import FEW_STEPS
from torch import nn

from mpx.precision.emulate import Emulate
from mpx.precision.fp8 import Layers
from mpx.precision.modes import MODES, lacking
from mpx.precision.ops import Replacing

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or lacking(MODES["fp8"], torch.device("cuda")) is not None,
    reason="needs a CUDA device with FP8",
)


def passed(model, x, context, gradient):
    """The outputs and all gradients of a forward and backward pass."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    with context:
        out = model(x)
    out.backward(gradient.to(out.dtype))
    return [value.detach().float() for value in (out, x.grad, *(p.grad for p in model.parameters()))]


class Native:
    """The plugin's contexts on a GPU."""

    def __enter__(self):
        fp8 = Replacing("linear", Layers(every=True).multiply)
        self.contexts = torch.autocast("cuda", dtype=torch.bfloat16), fp8
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *raised):
        for context in reversed(self.contexts):
            context.__exit__(*raised)


@pytest.mark.parametrize(("rows", "k", "n"), [(256, 256, 256), (100, 64, 48), (8192, 768, 3072)])
def test_native_compiled_and_emulated_agree(rows, k, n):
    torch.manual_seed(0)
    model, x, gradient = (
        nn.Linear(k, n).cuda(),
        torch.randn(rows, k, device="cuda"),
        torch.randn(rows, n, device="cuda") * 2.0**-12,
    )
    native, compiled = (
        passed(way, x, Native(), gradient) for way in (model, torch.compile(model, fullgraph=True))
    )
    with Emulate("fp8", linears=Layers(every=True)):
        emulated = passed(model, x, torch.enable_grad(), gradient)
    for one, other, expected in zip(native, compiled, emulated, strict=True):
        assert (one - expected).abs().max() < 2**-6 * expected.abs().amax()
        assert (one - expected).norm() < 2**-7 * expected.norm()  # BF16's rounding, far below FP8's
        # The compiler rounds the FP32 input to E4M3 directly, not to BF16 first: half of FP8's own error (3.6
        # %).
        assert (other - expected).norm() < 2**-5 * expected.norm()


def test_a_compiled_run_multiplies_in_fp8(train):
    """In batches of 64, PyTorch 2.11's compiler makes a backward pass that ends in an UnboundLocalError."""
    large = [
        "model=bert_base",
        "model.num_layers=2",
        "data=synthetic",
        "data.kind=text",
        "data.shape=[128]",
        "data.classes=2",
    ]
    large += [
        "data.batch_size=256",
        "data.samples=4096",
        "trainer.compile=default",
        "trainer.cuda_graphs=true",
        "audit=true",
    ]
    ran = train("precision=fp8", "precision.layers=all", *large, *FEW_STEPS)
    assert ran.code == 0, ran.err
    record = ran.record["precision"]
    formats = {layer["name"]: layer["format"] for layer in record["linear_layers"]}
    assert formats["bert.encoder.layer.0.intermediate.dense"] == "fp8_e4m3"
    assert formats["classifier"] == "bf16"
    rows = [row for row in record["audit"]["operations"] if row["kind"] == "linear"]
    assert {(row["fmt"], row["tensor_cores"]) for row in rows} == {("fp8_e4m3", True)}
    assert ran.record["speed"]["chosen"]["compiled"]["given_up"] is None
