"""The real files (never copied into the repository), and configurations as the YAML files give them."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

REPO = Path(__file__).parents[2]
SHARED = (REPO / ".." / "shared" / "data").resolve()


@pytest.fixture
def config(tmp_path):
    """`config("sst2", seq_len=8)`: conf/data/sst2.yaml with overrides; root and cache in a temporary folder
    unless given.
    """

    def make(name: str, **overrides):
        cfg = OmegaConf.load(REPO / "conf" / "data" / f"{name}.yaml")
        for key, value in {"root": str(tmp_path / "root"), "cache": str(tmp_path / "cache")}.items():
            if key in cfg:
                cfg[key] = value
        assert set(overrides) <= set(cfg), "an override of a field that the YAML does not have"
        return OmegaConf.merge(cfg, overrides)

    return make


def need(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the real files of {name} are not at {path}")
    return path


@pytest.fixture
def real():
    """`real("sst2")`: that folder of shared/data; skips where it is absent."""
    return need


@pytest.fixture(scope="session")
def cifar_root(tmp_path_factory) -> Path:
    script, where = need("cifar10_packed") / "unpack.py", tmp_path_factory.mktemp("cifar")
    subprocess.run([sys.executable, script, where], check=True, capture_output=True)
    return where


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory) -> str:
    """One cache for the tests that use the real SST-2: training its tokenizer takes seconds."""
    return str(tmp_path_factory.mktemp("cache"))
