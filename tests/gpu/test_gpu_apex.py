"""NVIDIA's own ASP, where the variable MPX_APEX names a checkout of it: in runs of mpx, and beside our
masks.
"""

import os
import sys

import pytest
import torch
from few_steps import SIX_STEPS

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or "MPX_APEX" not in os.environ,
    reason="needs a CUDA device, and MPX_APEX to name a checkout of apex",
)


@pytest.fixture
def apex():
    """PYTHONPATH with the checkout in front."""
    return {"PYTHONPATH": os.pathsep.join([os.environ["MPX_APEX"], *sys.path])}


@pytest.mark.parametrize("recipe", ["asp", "one_shot"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "bf16_true"])
def test_run(command, apex, recipe, precision):
    """The masks hold, through closures as well, and the pruned model's file has the plain keys."""
    ran = command(
        "model=resnet20",
        f"precision={precision}",
        "sparsity=2of4",
        "sparsity.backend=apex",
        f"sparsity.recipe={recipe}",
        *SIX_STEPS,
        env=apex,
    )
    assert ran.code == 0, ran.err
    sparsity = ran.record["sparsity"]
    assert (sparsity["backend"], sparsity["verified"]) == ("apex", True)
    assert sparsity["density"] == pytest.approx(0.5)
    assert 0.6 < sparsity["kept_magnitude"] < 0.9
    saved = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert not [name for name in saved if "mma" in name]


def test_one_shot_masks_are_mpxs(command, apex):
    """Both backends prune the same dense weights, and nothing trains them: what stays is the same, bit for
    bit.
    """
    dense, saved = command("model=resnet20", "study=dense", *SIX_STEPS, env=apex), []
    assert dense.code == 0, dense.err
    one_shot = [
        "model=resnet20",
        "sparsity=2of4",
        "sparsity.recipe=one_shot",
        f'sparsity.dense_ckpt="{dense.folder}/checkpoints/last.ckpt"',
    ]
    for backend in ("apex", "mpx"):
        ran = command(*one_shot, f"sparsity.backend={backend}", f"study={backend}", *SIX_STEPS[1:], env=apex)
        assert ran.code == 0, ran.err
        (file,) = ran.outputs.glob(f"{backend}/*/seed0/checkpoints/last.ckpt")
        saved.append(torch.load(file, weights_only=True)["state_dict"])
    apexs, ours = saved
    differing = {
        name: int((apexs[name] != ours[name]).sum())
        for name in ours
        if not torch.equal(apexs[name], ours[name])
    }
    # a group whose sums are equal in FP32 is possible, two are not
    assert sum(differing.values()) <= 4, differing
