"""Private API of other libraries: each use still works, and stands in mpx/private.py."""

import ast
import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from mpx import private

MPX = Path(private.__file__).parent
ROOMS = (
    "bench",
    "compare",
    "compat",
    "measure",
    "precision",
    "render",
    "sparsity",
    "sweep",
)  # rooms with uses of their own
# Undocumented by its underscore alone: torch's foreach functions are listed in its documentation, os._exit in Python's.
DOCUMENTED = re.compile(r"_foreach_\w+_?|_exit|_asdict|_replace")


def test_hydras_options():
    assert {"--multirun", "-m", "--help", "--config-dir"} <= set(private.hydra_options())


def test_hydras_writers():
    from hydra.core import utils

    assert all(inspect.isfunction(getattr(utils, name)) for name in private.HYDRA_WRITERS)


def test_workers_stop():
    loader = DataLoader([1, 2], num_workers=1, persistent_workers=True)
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        workers = iter(loader)._workers
    assert all(worker.is_alive() for worker in workers)
    private.stop_workers(loader)
    assert not any(worker.is_alive() for worker in workers)
    private.stop_workers(loader)  # none is left


@pytest.mark.parametrize("several", [False, True])
def test_auto_classes_of_transformers(several):
    from transformers import AutoModelForSequenceClassification, FunnelConfig, GPT2Config, T5Config

    config = FunnelConfig if several else GPT2Config
    sizes = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16, "block_sizes": [1]} if several else {"n_embd": 16, "n_head": 2}
    auto = private.auto_class_of(AutoModelForSequenceClassification, lambda network: type("Mine", (network,), {}))
    assert private.has_network(AutoModelForSequenceClassification, T5Config)
    assert not private.has_network(AutoModelForSequenceClassification, dict)
    model = auto.from_config(config(vocab_size=8, bos_token_id=None, eos_token_id=None, **sizes))
    assert type(model).__name__ == "Mine"
    assert type(model).__base__ is type(AutoModelForSequenceClassification.from_config(model.config))


def test_initialiser_of_transformers():
    from transformers import BertConfig, BertModel

    layer = nn.Linear(64, 64)
    model = BertModel(BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=3.0))
    private.init_as_pretrained(model, layer)
    assert layer.weight.std().item() == pytest.approx(3, rel=0.2)
    assert layer.bias.count_nonzero() == 0


def test_dispatch_modes_are_seen():
    assert private.dispatch_mode() is None
    with FlopCounterMode(display=False):
        assert private.dispatch_mode() is not None


def test_lightnings_closure():
    from pytorch_lightning.loops.optimization.automatic import Closure, ClosureResult

    closure, result = Closure(lambda: ClosureResult(torch.tensor(1.0)), lambda loss: None), ClosureResult(torch.tensor(2.0))
    closure()
    assert private.closure_result(closure).loss == 1
    private.set_closure_result(closure, result)
    assert closure.consume_result().loss == 2


def test_description_of_a_progress_bar(capsys):
    from pytorch_lightning import Trainer
    from pytorch_lightning.demos.boring_classes import BoringModel

    said = []
    bar = private.described_bar(lambda text, epoch, epochs: said.append((text.strip(), epoch, epochs)) or "mine")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "accelerator": "cpu", "barebones": False}
    Trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=0, callbacks=bar, **quiet).fit(BoringModel())
    assert said[0] == ("Epoch 0/0", 0, 1)
    assert "mine" in capsys.readouterr().out


def test_state_of_generators():
    """A CPU's generator has the methods and refuses them; tests/gpu/test_gpu_private.py calls them."""
    with pytest.raises(NotImplementedError, match="not supported in this Generator"):
        torch.Generator().graphsafe_get_state()
    assert callable(torch.Generator.graphsafe_set_state)


def test_errors_of_the_compiler():
    assert all(issubclass(error, Exception) for error in private.compiler_errors())


def test_buffers():
    module = nn.Module()
    module.register_buffer("one", torch.ones(1))
    module.register_buffer("none", None)
    assert list(private.buffers(module)) == ["one", "none"]


def test_base_classes_of_layers():
    assert all(issubclass(layer, private.convolution()) for layer in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d))
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm2d)
    assert all(issubclass(layer, private.norm_with_statistics()) for layer in norms)
    assert not issubclass(nn.LayerNorm, private.norm_with_statistics())


def test_every_function_says_with_which_versions_it_works():
    functions = [item for name, item in vars(private).items() if inspect.isfunction(item) and not name.startswith("_")]
    assert functions
    for function in functions:
        assert re.search(r"(PyTorch|Lightning|transformers|Hydra)\D+\d+\.\d+", function.__doc__), function.__name__


def test_private_names_stand_in_one_file():
    files = [path for path in MPX.rglob("*.py") if path.name != "private.py" and path.relative_to(MPX).parts[0] not in ROOMS]
    found = {str(path.relative_to(MPX)): list(private_names(ast.parse(path.read_text()))) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def private_names(tree: ast.AST):
    """Attributes and imported names with one leading underscore, except those of the class itself, and mpx's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if re.match(r"_[a-zA-Z]", node.attr) and not of_itself and not DOCUMENTED.fullmatch(node.attr):
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("mpx"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (name for name in names if re.match(r"_[a-zA-Z]", name))
