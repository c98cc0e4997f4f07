"""On a GPU, `python -m mpx.doctor` names the card and what it computes and serves."""

import pytest
import torch

from mpx.deploy.backends import backends
from mpx.doctor import tables
from mpx.precision.modes import MODES, emulated

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")


def rows(table):
    return {name: cells for name, *cells in table.rows}


def test_the_card_is_named():
    found = rows(tables.machine())
    assert torch.cuda.get_device_name(0) in found["GPU 0"][0]
    assert "compute capability {}.{}".format(*torch.cuda.get_device_capability(0)) in found["GPU 0"][0]


def test_modes_and_accelerations():
    for name, (computes, why) in rows(tables.modes(GPU)).items():
        native = not emulated(MODES["amp" if name == "amp_fp16" else name], GPU, "auto")
        assert (computes, bool(why)) == ("natively" if native else "emulated", not native)
    found = rows(tables.accelerations(GPU))
    assert found["CUDA graphs"] == found["cuDNN's search"] == ["yes", ""]


def test_formats_and_patterns():
    found = rows(tables.formats(GPU))
    assert set(found["fp32"][0].split(", ")) == set(backends("auto", "fp32", GPU))
    assert "onnx" in found["fp32"][1]
    trains, served, why = rows(tables.patterns(GPU))["2of4"]
    assert trains == "yes"
    if torch.cuda.get_device_capability(GPU) >= (8, 0) and torch.backends.cusparselt.is_available():
        assert served == "fp16, bf16, int8"
        assert "cuSPARSELt has no fp32" in why
    else:
        assert served == "–"
