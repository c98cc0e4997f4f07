"""Models with nothing left at its initial value, and a check that permuting leaves their function alone."""

from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import nn

from mpx.data.spec import Spec
from mpx.models import build
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.patterns import NofM
from mpx.sparsity.permutation import permute_model

CONF = Path(__file__).parents[3] / "conf" / "model"
IMAGE = Spec("image", (3, 32, 32), 10)
TEXT = Spec("text", (16,), 4, vocab_size=50, pad_id=0)
LM = Spec("lm", (12,), 48, vocab_size=48)
QUICK = 2e8  # of a whole model: a few steps for each of its groups


def named(choice: str, spec: Spec, **changes) -> nn.Module:
    """The model of conf/model/<choice>.yaml with changes, every parameter and statistic random."""
    config = OmegaConf.load(CONF / f"{choice}.yaml")
    config.pop("defaults", None)
    return shaken(build(OmegaConf.merge(config, changes), spec))


def shaken(model: nn.Module) -> nn.Module:
    """Random statistics, scales and shifts: a permutation that forgets one of them changes the outputs."""
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.dim() < 2:
            tensor.uniform_(0.5, 1.5) if name.endswith(("var", "weight")) else tensor.normal_(0, 0.5)
    return model.eval()


def batch_of(spec: Spec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if spec.kind == "image":
        return torch.randn(2, *spec.shape, generator=generator)
    ids = torch.randint(1, spec.vocab_size, (2, *spec.shape), generator=generator)
    ids[1, 9:] = 0
    return ids


def permuted(model: nn.Module, inputs, **settings):
    """permute_model over all weights of any shape, with few steps."""
    return permute_model(
        model, inputs, weights=weights(model, NofM(2, 4), Rules(shape="any")), **{"work": QUICK} | settings
    )


def assert_same_function(model: nn.Module, inputs, **settings):
    """Permute, and compare with before to 1e-5 of the outputs' size. Returns the report."""
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        before = model(*given)
        report = permuted(model, inputs, **settings)
        after = model(*given)
    assert report.reason is None
    assert before.abs().max() > 0
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * max(1.0, before.abs().max().item()))
    return report


def permuted_names(report) -> set[str]:
    return {layer["name"] for layer in report.layers if layer["permuted"]}


def reasons(report) -> dict[str, str]:
    return {layer["name"]: layer["reason"] for layer in report.layers if not layer["permuted"]}
