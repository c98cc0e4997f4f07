"""Each part imports what it needs alone. Heavy imports are not interrupted by garbage collections, nor is
what they make collected.
"""

import gc
import os
import subprocess
import sys

import pytest
from documents import ROOT
from started import start

import mpx.bench.__main__ as bench
import mpx.doctor.__main__ as doctor
import mpx.train
from mpx.system.machine import heavy


def test_what_is_imported_is_not_collected(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    before = gc.get_freeze_count()
    with heavy():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def test_a_program_that_has_imported_pytorch_keeps_its_ways():
    before = gc.get_freeze_count()
    with heavy():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch has another OpenMP")
@pytest.mark.parametrize(
    ("given", "waits"), [({}, 1000), ({"GOMP_SPINCOUNT": "77"}, 77), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0)]
)
def test_threads_wait_briefly_unless_the_user_says_how(given, waits):
    """OpenMP itself prints what it has read."""
    plain = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    code = "from mpx.system.machine import heavy\nwith heavy(): import torch"
    printing = plain | given | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=printing, capture_output=True, text=True, timeout=60
    )
    assert f"GOMP_SPINCOUNT = '{waits}'" in done.stderr


@pytest.mark.parametrize(
    ("main", "words"),
    [(mpx.train.main, ["model=mlp"]), (bench.main, ["what=triton", "accelerator=cpu"]), (doctor.main, [])],
    ids=["train", "bench", "doctor"],
)
def test_the_compilers_cache_is_a_file(tmp_path, main, words):
    """PyTorch would raise where Lightning or torchvision imports its compiler."""
    file = tmp_path / "cache"
    file.touch()
    done = start(main, tmp_path, *words, env={"TORCHINDUCTOR_CACHE_DIR": str(file)})
    line = (
        f"error: TORCHINDUCTOR_CACHE_DIR={file}: PyTorch cannot make this folder for its compiler (File "
        "exists). Name another folder, "
    )
    assert (done.code, done.out, done.err) == (2, "", f"{line}or unset it.\n")
    assert list(tmp_path.iterdir()) == [file]


def test_the_compilers_cache_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "cache"))
    with heavy():
        assert (tmp_path / "new" / "cache").is_dir()


PARTS = f"""
import sys

def imported_none_of(*names):
    assert not set(names) & set(sys.modules), set(names) & set(sys.modules)

from mpx.compat import amp
imported_none_of("pytorch_lightning", "hydra", "transformers")

import mpx.data
from omegaconf import OmegaConf
mpx.data.load(OmegaConf.load({str(mpx.train.CONF / "data" / "digits.yaml")!r}))
imported_none_of("pytorch_lightning", "torchvision", "transformers", "tokenizers")

from mpx.models import build
from mpx.data.spec import Spec
build({{"family": "resnet", "name": "resnet20", "inputs": ["image"]}}, Spec("image", (1, 8, 8), 10))
imported_none_of("transformers", "timm")
"""


@pytest.mark.slow
def test_no_part_imports_more_than_it_needs():
    """In one fresh process, since PyTorch's import takes longer than the rest."""
    done = subprocess.run(
        [sys.executable, "-c", PARTS], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
