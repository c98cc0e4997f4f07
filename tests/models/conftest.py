"""Data sets as models see them, and model configurations as the front door would hand them over."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from mpx.data.spec import Spec

CONF = Path(__file__).parents[2] / "conf" / "model"
SPECS = {
    "digits": Spec("image", (1, 8, 8), 10),
    "cifar10": Spec("image", (3, 32, 32), 10),
    "text": Spec("text", (16,), 2, vocab_size=50, pad_id=0),
    "lm": Spec("lm", (12,), 50, vocab_size=50),
}


@pytest.fixture
def cfg():
    """cfg("lstm", hidden_size=16): that YAML file with changes, without the defaults list, which is
    Hydra's.
    """

    def load(choice: str, **changes):
        config = OmegaConf.load(CONF / f"{choice}.yaml")
        config.pop("defaults", None)
        return OmegaConf.merge(config, changes)

    return load


@pytest.fixture
def spec():
    return SPECS.__getitem__


@pytest.fixture
def batch():
    """batch(spec): three random samples; the last text is short and padded."""

    def make(spec: Spec) -> torch.Tensor:
        if spec.kind == "image":
            return torch.randn(3, *spec.shape)
        ids = torch.randint(1, spec.vocab_size, (3, *spec.shape))
        if spec.kind == "text":
            ids[2, 5:] = spec.pad_id
        return ids

    return make
