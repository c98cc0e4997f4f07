"""Private API of other libraries: each use still works, and stands in mpx/private/."""

import ast
import inspect
import re
import signal
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.environments import LightningEnvironment
from silent import silent_trainer
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from mpx import private
from mpx.private import apex, lightning, torch_dispatch, torch_kernels, torch_modules

PRIVATE = Path(private.__file__).parent
ALLOWED = re.compile(
    r"_foreach_\w+_?"  # in PyTorch's documentation
    r"|_exit|_asdict|_replace|_fields|__\w+__"  # in Python's
    r"|_amp_\w+|_deactivate"  # apex's, which mpx.compat.amp gives to scripts
)


def test_lightnings_signals_and_processes():
    from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
    from pytorch_lightning.strategies.launchers import subprocess_script
    from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector

    assert inspect.isfunction(_TrainingEpochLoop._broadcast_sigterm_tensor)
    assert list(inspect.signature(_TrainingEpochLoop._build_kwargs).parameters)[1:] == [
        "kwargs",
        "batch",
        "batch_idx",
    ]
    assert inspect.isfunction(_SignalConnector.register_signal_handlers)
    assert signal.SIGINT in _SignalConnector._get_current_signal_handlers()
    assert list(inspect.signature(subprocess_script._launch_process_observer).parameters) == [
        "child_processes"
    ]
    assert list(inspect.signature(subprocess_script._hydra_subprocess_cmd).parameters) == ["local_rank"]


@pytest.mark.parametrize(
    ("layer", "in_training"),
    [(nn.BatchNorm1d(2), False), (nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)), True)],
)
def test_ddp_sends_buffers_that_training_reads(tmp_path, layer, in_training):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        strategy = lightning.OneStreamDDP(
            parallel_devices=[torch.device("cpu")], cluster_environment=LightningEnvironment()
        )
        found = strategy._setup_model(nn.Sequential(nn.Linear(2, 2), layer)).will_sync_module_buffers()
    finally:
        dist.destroy_process_group()
    assert found is in_training


def test_workers_stop():
    loader = DataLoader([1, 2], num_workers=1, persistent_workers=True)
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        workers = iter(loader)._workers
    assert all(worker.is_alive() for worker in workers)
    torch_modules.stop_workers(loader)
    assert not any(worker.is_alive() for worker in workers)
    torch_modules.stop_workers(loader)  # none is left


def test_lightnings_closure():
    from pytorch_lightning.loops.optimization.automatic import Closure, ClosureResult

    closure, result = (
        Closure(lambda: ClosureResult(torch.tensor(1.0)), lambda loss: None),
        ClosureResult(torch.tensor(2.0)),
    )
    closure()
    assert lightning.closure_result(closure).loss == 1
    lightning.set_closure_result(closure, result)
    assert closure.consume_result().loss == 2


def test_lightnings_hooks_before_a_step_come_before_its_clipping():
    from pytorch_lightning.demos.boring_classes import BoringModel
    from pytorch_lightning.plugins.precision import Precision

    class Own(Precision):
        def optimizer_step(self, optimizer, model, closure, **kwargs):
            closure()
            lightning.before_step(self, model, optimizer)
            assert nn.utils.get_total_norm([p.grad for p in model.parameters()]).item() == pytest.approx(
                1e-3, rel=1e-2
            )

    model, seen = BoringModel(), []
    model.on_before_optimizer_step = lambda optimizer: seen.append(model.layer.weight.grad.norm().item())
    silent_trainer(fast_dev_run=1, plugins=Own(), gradient_clip_val=1e-3).fit(model)
    assert len(seen) == 1
    assert seen[0] > 0.01


def test_description_of_a_progress_bar(capsys):
    from pytorch_lightning.demos.boring_classes import BoringModel

    few = {"limit_train_batches": 1, "limit_val_batches": 0}
    silent_trainer(callbacks=lightning.BarFromOne(), enable_progress_bar=True, **few).fit(BoringModel())
    out = capsys.readouterr().out
    assert "epoch 1/1" in out
    assert "Epoch 0/0" not in out


def test_a_module_computes_with_other_tensors_for_a_while():
    layer, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    before = layer(x)
    with torch_modules.reparametrized(layer, {"weight": torch.zeros(2, 2)}):
        assert layer(x).count_nonzero() == 0
    assert torch.equal(layer(x), before)


def test_an_rnn_forgets_exchanged_weights():
    rnn = nn.LSTM(2, 2)
    kept = rnn._flat_weights
    with torch_modules.own_flat_weights(rnn):
        rnn.weight_ih_l0 = nn.Parameter(torch.zeros(8, 2))
        assert rnn._flat_weights[0] is rnn.weight_ih_l0
    assert rnn._flat_weights is kept


def test_modes_do_not_see_what_runs_without_them():
    with FlopCounterMode(display=False) as counter:
        with torch_dispatch.without_dispatch_modes():
            torch.ones(2, 2) @ torch.ones(2, 2)
        with torch_dispatch.without_modes():
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert counter.get_total_flops() == 0
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert counter.get_total_flops() == 16


def test_products_of_8_bit_matrices():
    a, b = (torch.ones(32, 32, dtype=torch.int8) for _ in range(2))
    assert torch_kernels.int_mm(a, b).unique().tolist() == [32]
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    assert torch_kernels.scaled_mm(
        a, b, torch.tensor(2.0), torch.tensor(1.0), fast=False
    ).unique().tolist() == [64]


@pytest.mark.skipif(
    not hasattr(getattr(torch._C, "_cusparselt", None), "mm_search"),
    reason="this PyTorch was built without cuSPARSELt",
)
@pytest.mark.parametrize("out", [None, torch.int32])
def test_the_search_for_a_sparse_product_takes_these_arguments(out):
    """Arguments of another kind would be a TypeError, before the library asks for a device.
    tests/gpu/test_gpu_bench.py searches.
    """
    if torch.cuda.is_available():
        pytest.skip("tests/gpu/test_gpu_bench.py searches")
    with pytest.raises(RuntimeError):
        torch_kernels.fastest_mm_2of4(torch.zeros(8, 8), torch.zeros(8, 8), out)


def test_apexs_state_is_emptied():
    class ASP:
        __sparse_parameters = ("kept from an earlier run",)

    apex.empty(ASP)
    assert apex.sparse_parameters(ASP) == []


def test_private_names_stand_in_one_place():
    mpx = PRIVATE.parent
    trees = {
        str(path.relative_to(mpx)): ast.parse(path.read_text())
        for path in mpx.rglob("*.py")
        if path.parent != PRIVATE
    }
    own = {name for tree in trees.values() for name in made_names(tree)}
    found = {path: list(private_names(tree, own)) for path, tree in trees.items()}
    assert {path: names for path, names in found.items() if names} == {}


def made_names(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def private_names(tree: ast.AST, own: set[str]):
    """Attributes and imported names with a leading underscore, except mpx's own. A class may have inherited
    those of itself.
    """
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute):
            of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if of_itself and node.attr in own else [node.attr]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("mpx"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            # getattr and the like
            names = [argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)]
        yield from (name for name in names if re.match(r"_[a-zA-Z_]", name) and not ALLOWED.fullmatch(name))
