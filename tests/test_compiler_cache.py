"""Compiled code of one kind is not taken for that of another."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from pytorch_lightning.demos.boring_classes import BoringModel
from silent import silent_trainer

import mpx
from mpx import compiler_cache

PROGRAM = """
import sys, torch
from mpx.precision.modes import MODES
from mpx.precision.plugin import ModePrecision
for mode in ("amp_bf16", "amp"):
    precision = ModePrecision(MODES[mode], torch.device("cpu"), emulate=False)
    layer, x = torch.nn.Linear(64, 64), torch.randn(8, 64)
    with precision.forward_context():
        print(torch.compiler.config.cache_key_tag)
        if sys.argv[1:]:
            torch.compiler.reset()
            y = torch.compile(lambda x: layer(x), dynamic=False)(x)
    if sys.argv[1:]:
        y.float().sum().backward()
        print(y.dtype)
"""


def printed(cache, *words, **environment):
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)} | environment
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_cache_is_told_the_format_of_autocast_beside_the_users_own_tag(tmp_path):
    tags = printed(tmp_path, TORCH_COMPILE_CACHE_KEY_TAG="mine")
    assert tags == ["mine autocast=torch.bfloat16", "mine autocast=torch.float16"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="needs a C++ compiler")
def test_code_of_another_format_is_not_reused(tmp_path):
    """torch 2.11 and 2.12 themselves compute in BF16 where FP16 follows it."""
    assert printed(tmp_path, "compile")[1::2] == ["torch.bfloat16", "torch.float16"]


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(compiler_cache, "_parts", {})
    monkeypatch.setattr(compiler_cache, "_added", "")
    with torch.compiler.config.patch(cache_key_tag=""):
        yield


def test_the_cache_is_told_the_precision_of_a_recorded_loop(fresh, tmp_path):
    """Its own autocast is not known."""
    setting = {"model": "net", "data": "set", "precision": "amp_bf16", "sparsity": "dense", "seed": 0}
    with mpx.Recorder(setting=setting, output_dir=tmp_path):
        assert "precision=amp_bf16" in torch.compiler.config.cache_key_tag.split()


def test_the_cache_is_told_the_precision_of_a_lightning_trainer(fresh, tmp_path):
    trainer = silent_trainer(max_steps=1, precision="bf16-mixed", callbacks=[mpx.Record(output_dir=tmp_path)], default_root_dir=tmp_path)
    trainer.fit(BoringModel())
    assert "precision=amp_bf16" in torch.compiler.config.cache_key_tag.split()


def test_values_given_earlier_remain(fresh):
    compiler_cache.keep_apart(cpu="AVX2")
    compiler_cache.keep_apart(autocast=torch.float16)
    compiler_cache.keep_apart(autocast=torch.bfloat16)
    assert torch.compiler.config.cache_key_tag == " autocast=torch.bfloat16 cpu=AVX2"


def test_a_tag_that_the_user_sets_later_remains_beside_it(fresh):
    compiler_cache.keep_apart(autocast=torch.bfloat16)
    torch.compiler.config.cache_key_tag = "mine"
    compiler_cache.keep_apart(autocast=torch.bfloat16)
    assert torch.compiler.config.cache_key_tag == "mine autocast=torch.bfloat16"
    compiler_cache.keep_apart(autocast=torch.float16)
    assert torch.compiler.config.cache_key_tag == "mine autocast=torch.float16"
