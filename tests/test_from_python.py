"""mpx.run and mpx.judge, called from a script or notebook."""

import json
import signal
import subprocess
import sys

import pytest
from few_steps import FEW_STEPS
from processes import wait_for

import mpx
from mpx.compare.comparison import Comparison

NET = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self, do):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        self.do, self.calls = do, 0
    def forward(self, x):
        self.calls += self.training
        if self.calls == 2 and self.do == "fail":
            raise ArithmeticError("a bug of mine")
        return super().forward(x) * (float("nan") if self.do == "diverge" and self.calls > 1 else 1)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*settings) -> the record, of a short run."""
    monkeypatch.chdir(tmp_path)
    return lambda *settings: mpx.run(["model=mlp", *FEW_STEPS, *settings])


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own("fail") -> the record of a run whose model, which this program finds, does that in its second
    step.
    """
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "net_from_python.py").write_text(NET)
    custom = ["model=custom", "model._target_=net_from_python.Net", *FEW_STEPS]
    return lambda do, *settings: mpx.run([*custom, f"+model.kwargs.do={do}", *settings])


@pytest.mark.slow
def test_a_run_returns_its_record(run, capsys):
    record = run("seed=1")
    assert record["status"] == "completed"
    assert record == json.loads((record.folder / "result.json").read_text())
    assert record.folder.name == "seed1"
    assert record["environment"]["command"].startswith("python -m mpx.train model=mlp ")
    out = capsys.readouterr().out
    assert "epoch 1/1" in out
    assert "│ test accuracy" in out
    again = run("seed=1", "if_exists=skip")
    assert again.folder == record.folder
    assert again["metrics"] == record["metrics"]


@pytest.mark.slow
def test_a_diverged_run_is_a_result(own, capsys):
    assert own("diverge")["status"] == "diverged"
    assert "error: the loss became infinite or NaN" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_fails_raises_its_line(own, capsys):
    with pytest.raises(mpx.UserError, match=r"^ArithmeticError: a bug of mine$"):
        own("fail")
    assert "Traceback" in capsys.readouterr().out
    with pytest.raises(
        mpx.UserError,
        match=r"seed0 failed earlier: ArithmeticError: a bug of mine\. if_exists=resume tries it again\.$",
    ):
        own("fail", "if_exists=skip")


LOOP = """
import mpx
for seed in range(2):
    mpx.run(["model=mlp", "trainer.max_epochs=9999", "trainer.accelerator=cpu", f"seed={seed}"])
"""


@pytest.mark.slow
def test_ctrl_c_lets_the_run_save_and_ends_the_loop_around_it(tmp_path):
    loop = subprocess.Popen(
        [sys.executable, "-c", LOOP], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: list(tmp_path.glob("outputs/*/*/seed0/checkpoints/last.ckpt")))
    loop.send_signal(signal.SIGINT)
    out, err = loop.communicate(timeout=60)
    assert "interrupted; the same command with if_exists=resume continues it" in out
    assert err.endswith("KeyboardInterrupt\n")
    (file,) = tmp_path.glob("outputs/*/*/seed?/result.json")
    assert json.loads(file.read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["optimizer.lr=-1"], ("optimizer.lr=-1", "above 0", "optimizer.lr=0.1")),
        (["-m", "seed=0,1"], ("-m", "loop")),
        (["--help"], ("--help", "no options")),
        ("precision=amp", ("precision=amp", "a list")),
        (["experiment=grid"], ("experiment=grid", "a grid over")),
    ],
)
def test_mistakes_raise_one_line(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mpx.UserError) as raised:
        mpx.run(settings)
    assert all(word in str(raised.value) for word in words)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_judge_returns_the_comparison(train, tmp_path):
    """Another program's Hydra goes on."""
    for precision in ("fp32", "amp_bf16"):
        train("model=mlp", *FEW_STEPS, f"precision={precision}")
    comparison = mpx.judge("default", output_dir=tmp_path / "outputs", margin=0.05)
    assert isinstance(comparison, Comparison)
    assert [row.setting for row in comparison.groups[0].rows] == ["fp32-dense", "amp_bf16-dense"]
    assert comparison.question.margin == 0.05
    assert repr(comparison) == "<Comparison of default: 1 group, 2 runs, 0 left out>"
    assert (tmp_path / "outputs" / "default" / "report.html").is_file()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"study": "none"}, ("study=none", "is not there")),
        ({"margin": 2}, ("margin=2", "below 1")),
        ({"margins": 0.1}, ("margins", "margin")),
        ({"results": "a.csv", "output_dir": "b"}, ("results", "output_dir")),
        ({"list": True}, ("list", "mpx.list_runs")),
    ],
)
def test_mistakes_of_judge(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mpx.UserError) as raised:
        mpx.judge(**settings)
    assert all(word in str(raised.value) for word in words)


def test_help_leads_on():
    assert all(
        name in mpx.__doc__
        for name in ("mpx-train", "mpx-compare", "mpx-bench", "mpx.run", "mpx.Recorder", "docs/")
    )
    assert set(mpx.PUBLIC) <= set(dir(mpx))
    assert all(getattr(mpx, name).__doc__ for name in mpx.PUBLIC)
