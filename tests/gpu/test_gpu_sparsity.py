"""Sparsity where it runs for speed: masks are the CPU's, recipes hold with fused optimizers, and no step
waits for the device.
"""

import pytest
import torch
from few_steps import SIX_STEPS
from own_module import Target, Teacher, fit
from torch import nn

import mpx
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM, Unstructured
from mpx.sparsity.recipes import Plan, SrSte
from mpx.sparsity.tiles import Tiles

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]

PATTERNS = [NofM(2, 4), NofM(3, 16), Tiles("best"), Tiles("greedy"), Unstructured(0.5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: f"{p.name} {getattr(p, 'search', '')}")
def test_masks_are_those_of_the_cpu(pattern, dtype):
    """BF16 and FP16 values of 64 Ki normal ones tie often."""
    for shape in ((256, 256), (64, 32, 3, 3), (30, 17)):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        for values in (weight, weight.where(weight.abs() < 1, torch.nan).where(weight < 1, -torch.inf)):
            assert torch.equal(pattern.mask(values.cuda()).cpu(), pattern.mask(values))


def test_compiled_masks_are_the_same():
    found = [
        torch.randn(256, 256, device="cuda"),
        torch.randn(64, 32, 3, 3, device="cuda").to(memory_format=torch.channels_last),
    ]
    for compiled, eager in zip(NofM(2, 4).masks(found, compiled=True), NofM(2, 4).masks(found), strict=True):
        assert torch.equal(compiled, eager)
        assert compiled.stride() == eager.stride()


@pytest.mark.parametrize("recipe", ["asp", "one_shot", "from_start", "gradual", "sr_ste"])
@pytest.mark.parametrize("precision", ["fp32", "amp", "amp_bf16"])
def test_recipes(train, recipe, precision):
    ran = train(
        "model=resnet20", f"precision={precision}", "sparsity=2of4", f"sparsity.recipe={recipe}", *SIX_STEPS
    )
    assert ran.code == 0, ran.err
    assert ran.record["sparsity"]["verified"] is True
    assert ran.record["sparsity"]["density"] == pytest.approx(0.5)


@pytest.mark.parametrize("precision", ["amp", "amp_bf16", "fp16_true", "bf16_true"])
@pytest.mark.parametrize("kind", [Target, Teacher])
def test_weights_that_no_optimizer_trains_get_no_masks(kind, precision):
    """FP16 weights have FP32 copies, which the optimizer trains in their place."""
    sparsity = mpx.Sparsity("2of4", start_step=8)
    trainer = fit(sparsity, module=kind(), accelerator="gpu", plugins=mpx.Precision(precision))
    found = sparsity.record(fmt="fp16", device=torch.device("cuda"))
    assert {row["name"]: row["pruned"] for row in found["layers"] if row["name"] != "head.weight"} == {
        "encoder.weight": True,
        "target.weight": False,
    }
    assert trainer.strategy.root_device.type == "cuda"
    assert found["verified"]


@pytest.mark.parametrize(
    "model", [["model=mlp", "model.widths=[32,32]"], ["model=resnet20"]], ids=["Linear", "Conv2d"]
)
def test_coverage_names_the_sparse_kernel(train, model):
    ran = train(*model, "precision=amp_bf16", "sparsity=2of4", *SIX_STEPS)
    kernels = {
        (row["sparse_kernel"], row["sparse_kernel_reason"])
        for row in ran.record["sparsity"]["layers"]
        if row["pruned"]
    }
    assert kernels & {("cuSPARSELt", None), (None, "this PyTorch was built without cuSPARSELt")}


@pytest.mark.parametrize(
    ("recipe", "rate"), [("fixed", 1e-3), ("sr_ste", 1e-3), ("sr_ste", torch.tensor(1e-3))]
)
def test_a_step_does_not_wait_for_the_device(recipe, rate):
    layer = nn.Linear(64, 64, device="cuda")
    rate = rate.cuda() if isinstance(rate, torch.Tensor) else rate
    optimizer = torch.optim.AdamW(layer.parameters(), lr=rate, fused=True)
    masks = Masks(weights(layer, NofM(2, 4), Rules()), NofM(2, 4), remember=recipe == "sr_ste")
    ste = SrSte(Plan(0, 0), decay=2e-4)
    # on the host, as those of a checkpoint
    ste.load_state_dict({"variances": {"weight": torch.ones(64, 64)}})

    def step(number):
        layer.weight.grad, layer.bias.grad = torch.ones_like(layer.weight), torch.ones_like(layer.bias)
        if recipe == "fixed":
            masks.mask_gradients()
            optimizer.step()
        else:
            ste.on_gradients(masks, optimizer)
            optimizer.step()
            ste.after_step(number, masks, [optimizer], torch.zeros((), dtype=torch.bool, device="cuda"))

    masks.prune([]) if recipe == "fixed" else ste.before_forward(0, masks, [optimizer])
    step(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert masks.verify([optimizer] if recipe == "fixed" else []) == []
