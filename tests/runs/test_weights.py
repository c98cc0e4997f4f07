"""Weights from every kind of file; tests/deploy/test_own.py has the damaged ones."""

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from mpx.errors import UserError
from mpx.runs.weights import load_weights


class Net(nn.Module):
    """Some of its own names begin as Lightning's do."""

    def __init__(self):
        super().__init__()
        self.model, self.head = nn.Linear(4, 3), nn.BatchNorm1d(3)


def under(word, state):
    return {word + name: value for name, value in state.items()}


FILES = {
    "w.pt": torch.save,
    "nested.pt": lambda state, path: torch.save({"state_dict": state, "epoch": 3}, path),
    "w.safetensors": save_file,
    "lightning.ckpt": lambda state, path: torch.save(
        {"state_dict": under("model.", state) | {"loss.weight": torch.ones(2)}}, path
    ),
    "parallel.pt": lambda state, path: torch.save(under("module.", state), path),
    "compiled.pt": lambda state, path: torch.save(under("_orig_mod.", state), path),
    "parallel_of_compiled.pt": lambda state, path: torch.save(under("module._orig_mod.", state), path),
    "lightning_of_compiled.ckpt": lambda state, path: torch.save(
        {"state_dict": under("model._orig_mod.", state)}, path
    ),
    "half.pt": lambda state, path: torch.save({name: value.half() for name, value in state.items()}, path),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file(tmp_path, name):
    saved, loaded = Net().state_dict(), Net()
    FILES[name](saved, tmp_path / name)
    load_weights(tmp_path / name, loaded, "ckpt")
    for key, value in loaded.state_dict().items():
        assert value.dtype == saved[key].dtype
        torch.testing.assert_close(
            value, saved[key], rtol=1e-3 if name == "half.pt" else 0, atol=1e-3 if name == "half.pt" else 0
        )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.decoder.weight = self.embedding.weight


def test_a_weight_that_two_layers_share(tmp_path):
    """It may stand under one of its names; under both it must be one, or the second would silently be the
    first's, too.
    """
    saved, loaded = Tied(), Tied()
    save_model(saved, str(tmp_path / "one.safetensors"))
    load_weights(tmp_path / "one.safetensors", loaded, "ckpt")
    assert torch.equal(loaded.embedding.weight, saved.embedding.weight)
    torch.save(saved.state_dict(), tmp_path / "both.pt")
    load_weights(tmp_path / "both.pt", loaded, "ckpt")
    torch.save(saved.state_dict() | {"decoder.weight": torch.zeros(5, 4)}, tmp_path / "two.pt")
    with pytest.raises(
        UserError,
        match=r"two\.pt has different values for embedding\.weight and "
        r"decoder\.weight, which are one weight in",
    ):
        load_weights(tmp_path / "two.pt", loaded, "ckpt")
    assert torch.equal(loaded.embedding.weight, saved.embedding.weight)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_with_two_names_that_is_not_finite(tmp_path, value):
    saved = Tied()
    nn.init.constant_(saved.embedding.weight, value)
    torch.save(saved.state_dict(), tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"w\.pt has infinite or NaN values as embedding\.weight"):
        load_weights(tmp_path / "w.pt", Tied(), "ckpt")


def test_the_name_in_the_file_is_told(tmp_path):
    """Names are compared behind the word that a LightningModule puts before them."""
    state = under("model.", Net().state_dict())
    del state["model.head.bias"]
    torch.save({"state_dict": state}, tmp_path / "w.pt")
    with pytest.raises(
        UserError,
        match=r"^ckpt=.*w\.pt is a checkpoint of another model: head\.bias is missing there and "
        r"\(3,\) in this one",
    ):
        load_weights(tmp_path / "w.pt", Net(), "ckpt")
