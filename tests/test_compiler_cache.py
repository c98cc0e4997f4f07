"""Compiled code of one kind is not taken for that of another."""

import os
import shutil
import subprocess
import sys
from uuid import uuid4

import pytest
import torch
from pytorch_lightning.demos.boring_classes import BoringModel
from silent import silent_trainer

import mpx
from mpx.precision.modes import MODES
from mpx.precision.plugin import ModePrecision

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++") and not shutil.which("clang++"), reason="needs a C++ compiler"
)
SUM = """
import torch
from mpx.acceleration.compiled import Compiled
x = torch.arange(1000.0)
call = Compiled(lambda x: (2 * x + 1).relu(), "default", in_graph=False, required=True, tell=print)
right = torch.equal(call(x), 2 * x + 1)
"""


@pytest.fixture
def fresh():
    """The user's own tag, with which nothing is cached yet. The cache's folder is the usual one: in a new one
    the compiler checks for eight seconds what this CPU can do.
    """
    with torch.compiler.config.patch(cache_key_tag=(tag := uuid4().hex)):
        yield tag


def test_the_cache_is_told_the_format_of_autocast_beside_the_users_own_tag(fresh):
    tags = []
    for mode in ("amp_bf16", "amp"):
        with ModePrecision(MODES[mode], torch.device("cpu"), emulate=False).forward_context():
            tags.append(set(torch.compiler.config.cache_key_tag.split()))
    assert tags == [{fresh, "autocast=torch.bfloat16"}, {fresh, "autocast=torch.float16"}]


@pytest.mark.slow
@needs_compiler
def test_code_of_another_format_is_not_reused(fresh):
    """torch 2.11 and 2.12 themselves compute in BF16 where FP16 follows it."""
    found = []
    for mode in ("amp_bf16", "amp"):
        precision = ModePrecision(MODES[mode], torch.device("cpu"), emulate=False)
        layer, x = torch.nn.Linear(64, 64), torch.randn(8, 64)
        with precision.forward_context():
            torch.compiler.reset()
            y = torch.compile(lambda x, layer=layer: layer(x), dynamic=False)(x)
        y.float().sum().backward()
        found.append(y.dtype)
    assert found == [torch.bfloat16, torch.float16]


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="needs a CPU that can act as two"
)
def test_code_for_other_instructions_is_not_reused(fresh):
    """torch.compile itself computes wrong values from the second CPU on: its cache's key has no instructions
    (torch 2.14).
    """
    exec(SUM, first := {})
    assert first["right"]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "TORCH_COMPILE_CACHE_KEY_TAG": fresh}
    subprocess.run([sys.executable, "-c", f"{SUM}assert right"], env=environment, check=True)


def test_the_cache_is_told_the_precision_of_a_recorded_loop(fresh, tmp_path):
    """Its own autocast is not known."""
    setting = {"model": "net", "data": "set", "precision": "amp_bf16", "sparsity": "dense", "seed": 0}
    with mpx.Recorder(setting=setting, output_dir=tmp_path):
        assert "precision=amp_bf16" in torch.compiler.config.cache_key_tag.split()


def test_the_cache_is_told_the_precision_of_a_lightning_trainer(fresh, tmp_path):
    trainer = silent_trainer(
        max_steps=1,
        precision="bf16-mixed",
        callbacks=[mpx.Record(output_dir=tmp_path)],
        default_root_dir=tmp_path,
    )
    trainer.fit(BoringModel())
    assert "precision=amp_bf16" in torch.compiler.config.cache_key_tag.split()
