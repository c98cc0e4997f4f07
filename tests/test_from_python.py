"""mpx.run and mpx.judge in the process of a script or notebook, which they leave as it was."""

import gc
import inspect
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import typing
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from few_steps import FEW_STEPS
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import mpx
from mpx.compare.comparison import Comparison
from mpx.errors import UserError

NET = """
import os, signal, torch
class Net(torch.nn.Sequential):
    def __init__(self, do):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        self.do, self.calls = do, 0
    def forward(self, x):
        self.calls += self.training
        if self.calls == 2 and self.do == "fail":
            raise ArithmeticError("a bug of mine")
        if self.calls == 2 and self.do == "full":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.calls == 2 and self.do == "stop":
            signal.raise_signal(signal.SIGINT)
        return super().forward(x) * (float("nan") if self.do == "diverge" and self.calls > 1 else 1)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*settings) -> the record, of a short run."""
    monkeypatch.chdir(tmp_path)
    return lambda *settings: mpx.run(["model=mlp", *FEW_STEPS, *settings])


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own("fail") -> the record of a run whose model does that in its second step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "net_from_python.py").write_text(NET)
    custom = ["model=custom", "model._target_=net_from_python.Net", *FEW_STEPS]
    yield lambda do, *settings: mpx.run([*custom, f"+model.kwargs.do={do}", *settings])
    sys.modules.pop("net_from_python", None)


def status(tmp_path):
    (file,) = tmp_path.glob("outputs/default/*/seed0/result.json")
    return json.loads(file.read_text())["status"]


def test_a_run_returns_its_record_twice_in_one_process(run, capsys):
    for precision in ("fp32", "amp_bf16"):
        record = run(f"precision={precision}", "seed=1")
        assert record["status"] == "completed"
        assert record == json.loads((record.folder / "result.json").read_text())
        assert record.folder.name == "seed1"
        assert record["environment"]["command"].startswith("python -m mpx.train model=mlp ")
        assert f"precision={precision} seed=1" in record["environment"]["command"]
    printed = capsys.readouterr()
    assert "epoch 1/1" in printed.out
    assert "│ test accuracy │" in printed.out
    assert printed.err == ""


def test_a_project_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = ["module._target_=own_projects.UNet", "datamodule._target_=own_projects.Blobs", "metric=val/dice"]
    record = mpx.run([*project, "trainer.max_epochs=1", "trainer.accelerator=cpu"])
    assert (record["status"], record["metric"]) == ("completed", {"name": "val/dice", "goal": "max"})


def test_a_run_computes_what_the_command_computes(run, train):
    commanded = train("model=mlp", *FEW_STEPS).record
    assert run("study=again")["metrics"] == commanded["metrics"]


def test_the_process_stays_as_it_was(run, monkeypatch):
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    signal.signal(signal.SIGTERM, handler := lambda *_: None)
    try:
        before = state()
        run("seed=3")
        assert state() == before
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        torch.use_deterministic_algorithms(False)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def state():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "switches": (matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.benchmark),
        "reduced": (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        "threads": torch.get_num_threads(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)],
        "warnings": list(warnings.filters),
        "loggers": [logging.getLogger(name).level for name in ("pytorch_lightning", "lightning_fabric")],
        "environment": dict(os.environ),
        "hydra": (GlobalHydra.instance().hydra, HydraConfig.instance().cfg),
        "arguments": sys.argv,
    }


def test_a_programs_own_hydra_goes_on(run, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("a: 1")
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        run()
        assert compose("mine", ["a=2"]).a == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["optimizer.lr=-1"], ("optimizer.lr=-1", "above 0", "optimizer.lr=0.1")),
        (["model=resnet"], ("model=resnet", "Did you mean")),
        (["modle=mlp"], ("modle", "Did you mean model?")),
        (["model.lr={adamw:0.2}"], ("model.lr.adamw", "model.lr.sgd")),
        (["seed=0,1"], ("seed", "several values")),
        (["-m", "seed=0,1"], ("-m", "loop")),
        (["--help"], ("--help", "no options")),
        ("precision=amp", ("precision=amp", "a list")),
        (["trainer.devices=2"], ("trainer.devices=2", "python -m mpx.train")),
        (["experiment=grid"], ("experiment=grid", "a grid over")),
        (["data=mnist", "data.root=nowhere/mnist"], ("data.root=nowhere/mnist",)),
    ],
)
def test_mistakes_raise_one_line(tmp_path, monkeypatch, capsys, settings, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mpx.UserError) as raised:
        mpx.run(settings)
    assert all(word in str(raised.value) for word in words)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert not GlobalHydra.instance().is_initialized()


def test_a_mistake_imports_nothing_heavy(tmp_path):
    program = (
        "import sys, mpx\n"
        "try: mpx.run(['optimizer.lr=-1'])\n"
        "except mpx.UserError as error: print('UserError')\n"
        "print([name for name in ('torch', 'pytorch_lightning', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("UserError\n[]\n", "")


def test_a_bug_is_raised_as_it_is(own, tmp_path, capsys):
    with pytest.raises(ArithmeticError, match="a bug of mine"):
        own("fail")
    assert status(tmp_path) == "failed"
    assert capsys.readouterr().err == ""
    with pytest.raises(mpx.UserError, match=r"seed0 failed earlier: ArithmeticError: a bug of mine\. if_exists=resume tries it again\.$"):
        own("fail", "if_exists=skip")


def test_what_one_line_explains_is_a_user_error(own, tmp_path):
    with pytest.raises(mpx.UserError, match=r"out of memory with data\.batch_size="):
        own("full")
    assert status(tmp_path) == "failed"


def test_ctrl_c_interrupts_also_the_loop_around_it(own, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        own("stop")
    assert status(tmp_path) == "interrupted"


def test_a_run_leaves_nothing_on_the_device(run):
    """A Trainer that is left as garbage holds the device's memory, and its CUDA events kill a later run's worker that collects them."""
    run(*FEW_STEPS)
    assert not [found for found in gc.get_objects() if isinstance(found, pl.Trainer)]


def test_a_diverged_run_is_a_result(own, capsys):
    record = own("diverge")
    assert record["status"] == "diverged"
    assert "error: the loss became infinite or NaN" in capsys.readouterr().err


def test_a_finished_run_is_returned(run):
    first = run()
    again = run("if_exists=skip")
    assert again.folder == first.folder
    assert again["metrics"] == first["metrics"]


def test_another_thread_is_refused():
    found = []

    def call():
        try:
            mpx.run([])
        except mpx.UserError as error:
            found.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in found[0]


def test_within_autocast_it_is_refused():
    """The operations that the run's own mode leaves alone would be in the other's format: the loss was twice as high."""
    with torch.autocast("cpu", torch.float16), pytest.raises(UserError, match=r"^mpx.run within torch.autocast: .* precision=amp_bf16"):
        mpx.run(["precision=amp_bf16", "model=mlp", *FEW_STEPS])


@contextmanager
def default_of_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (torch.inference_mode, "mpx.run within torch.inference_mode: call it outside"),
        (default_of_float64, r"mpx.run with torch.float64 as PyTorch's default: call torch.set_default_dtype\(torch.float32\)"),
        (lambda: torch.device("meta"), r"mpx.run with meta as PyTorch's default: call torch.set_default_device\(None\)"),
    ],
)
def test_a_state_of_pytorch_that_would_change_the_run_is_refused(state, said):
    with state(), pytest.raises(UserError, match=said):
        mpx.run(["model=mlp", *FEW_STEPS])


def test_a_program_without_gradients_may_train(run):
    with torch.no_grad():
        record = run()
    assert record["metrics"] == run()["metrics"]


def test_judge_returns_the_comparison(run, tmp_path, capsys):
    for precision in ("fp32", "amp_bf16"):
        run(f"precision={precision}")
    comparison = mpx.judge("default", output_dir=tmp_path / "outputs", margin=0.05, note="Two formats.")
    assert isinstance(comparison, Comparison)
    assert [row.setting for row in comparison.groups[0].rows] == ["fp32-dense", "amp_bf16-dense"]
    assert comparison.margin == 0.05
    assert repr(comparison) == "<Comparison of default: 1 group, 2 runs, 0 left out>"
    assert (tmp_path / "outputs" / "default" / "report.html").is_file()
    assert capsys.readouterr().out.count("Two formats.") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"study": "none"}, ("study=none", "is not there")),
        ({"margin": 2}, ("margin=2", "below 1")),
        ({"margins": 0.1}, ("margins", "margin")),
        ({"results": "a.csv", "output_dir": "b"}, ("results", "output_dir")),
    ],
)
def test_mistakes_of_judge(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mpx.UserError) as raised:
        mpx.judge(**settings)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("name", sorted(mpx.PUBLIC.keys() - {"UserError"}))
def test_a_public_name_is_typed(name):
    """Also its methods; those of Lightning's hooks have its types."""
    public = getattr(mpx, name)
    methods = [value for key, value in vars(public).items() if not key.startswith(("_", "on_"))] if inspect.isclass(public) else []
    for function in (public, *filter(inspect.isfunction, methods)):
        given = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        assert [p.name for p in given if p.annotation is p.empty] == [], function
        assert inspect.isclass(function) or typing.get_type_hints(function).keys() >= {"return"}, function


def test_help_leads_on():
    assert all(name in mpx.__doc__ for name in ("mpx-train", "mpx-compare", "mpx-bench", "mpx.run", "mpx.Recorder", "docs/"))
    assert set(mpx.PUBLIC) <= set(dir(mpx))
    assert all(getattr(mpx, name).__doc__ for name in mpx.PUBLIC)
    with pytest.raises(AttributeError, match="module 'mpx' has no attribute 'nothing'"):
        _ = mpx.nothing
