"""backend=tensorrt with a stand-in for torch_tensorrt: what mpx asks of it, and one line where it is missing or broken."""

import sys

import pytest
import torch
from torch import nn

from mpx.deploy import backends, choose
from mpx.deploy.backends import Callers, Served
from mpx.errors import UserError
from mpx.settings.extras import install

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STAND_IN = """
import torch

built = []


def backend(graph, inputs, *, options):
    built.append(([len(value) for value in inputs if value.shape[-1] == 8 and len(value) != 4], options))
    return graph


torch._dynamo.register_backend(backend, name="torch_tensorrt")
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """package(text) -> puts a module torch_tensorrt of this text in TensorRT's place."""
    (tmp_path / "stand_in").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "stand_in")

    def make(text):
        (tmp_path / "stand_in" / "torch_tensorrt.py").write_text(text)

    yield make
    sys.modules.pop("torch_tensorrt", None)
    torch._dynamo.backends.registry._COMPILER_FNS.pop("torch_tensorrt", None)
    torch.compiler.reset()


class Searches(nn.Linear):
    """As a 2:4 layer, it does something at its first call that a compiler cannot."""

    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.searched.append(len(x))
        return super().forward(x)


def test_it_compiles_each_batch_size_and_lets_no_failure_pass(package):
    package(STAND_IN)
    model = Searches(8, 4).eval().requires_grad_(False)
    model.searched = []
    served = Served(model, "tensorrt", CUDA)
    with torch.no_grad():
        for size in (3, 5, 5, 3):
            x = torch.randn(size, 8)
            torch.testing.assert_close(served(x), torch.nn.functional.linear(x, model.weight, model.bias))
    built = sys.modules["torch_tensorrt"].built
    assert [sizes for sizes, _ in built] == [[3], [5]]
    assert all(options["pass_through_build_failures"] for _, options in built)  # otherwise PyTorch would serve in its place
    assert all(options["use_explicit_typing"] and options["min_block_size"] == 1 for _, options in built)
    assert model.searched == [3, 5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print('import error')\nimport tensorrt_of_nvidia", "ModuleNotFoundError: No module named 'tensorrt_of_nvidia'"),
        (STAND_IN.replace("return graph", "raise RuntimeError('engine not built')"), "engine not built"),
    ],
    ids=["libraries missing", "build failed"],
)
def test_what_fails_is_one_line(package, monkeypatch, capsys, text, reason):
    package(text)
    callers = Callers("fp16", CUDA, "image", lambda: iter(()))
    monkeypatch.setattr(choose, "throughput", lambda served, x: 1.0)
    model, x = nn.Linear(8, 4).requires_grad_(False), torch.randn(3, 8)
    with torch.no_grad():
        choice = choose.choose(model, x, "fp16", "dense", ["tensorrt", "eager"], callers, {}, lambda part: None)
    assert choice.backend == "eager"
    assert reason in choice.refused["tensorrt"]
    assert "\n" not in choice.refused["tensorrt"]
    assert capsys.readouterr().out == ""


def test_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(backends, "builds_kernels", lambda device: True)
    with pytest.raises(UserError) as error:
        backends.backends("tensorrt", "fp16", CUDA)
    assert str(error.value) == (
        f"backend=tensorrt: torch_tensorrt is not installed; {install('tensorrt')} brings it. Use backend=auto or eager."
    )
    with pytest.raises(UserError, match="backend=tensorrt: mpx calls TensorRT in tf32, fp16, bf16, not in int8"):
        backends.backends("tensorrt", "int8", CUDA)


def test_auto_does_not_try_it(package, monkeypatch):
    """It takes minutes."""
    package(STAND_IN)
    monkeypatch.setattr(backends, "builds_kernels", lambda device: True)
    assert backends.backends("auto", "fp16", CUDA) == ["eager", "compile", "graph"]
    assert backends.backends("tensorrt", "fp16", CUDA) == ["tensorrt"]
