"""`python -m mpx.doctor` says what training and serving answer here."""

import importlib.metadata
import importlib.util
import re
import sys

import pytest
import torch
from documents import ROOT

from mpx.deploy.backends import backends
from mpx.deploy.build import mode_of
from mpx.doctor import __main__ as command
from mpx.doctor import tables
from mpx.errors import UserError
from mpx.precision.modes import MODES, emulated
from mpx.settings.deploy import FORMATS
from mpx.settings.front_door import CONF

CPU = torch.device("cpu")
BACKENDS = ("eager", "compile", "graph", "onnx")


def choices(group):
    return {path.stem for path in (CONF / group).glob("*.yaml")}


def rows(table):
    """first cell -> the others"""
    return {name: cells for name, *cells in table.rows}


@pytest.fixture
def doctor(monkeypatch, capsys):
    """doctor(*words) -> exit code, stdout, stderr"""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["mpx.doctor", *words])
        capsys.readouterr()
        try:
            command.main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def without(monkeypatch):
    """without(package): as if the package were not installed, for whoever asks."""
    found = importlib.util.find_spec

    def remove(package):
        def find(name, parent=None):
            return None if name.split(".")[-1] == package else found(name, parent)

        monkeypatch.setattr(importlib.util, "find_spec", find)

    return remove


def test_every_table_is_printed(doctor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = doctor()
    assert (code, err) == (0, "")
    shown = set(re.findall(r"^│ (\S+) ", out, re.MULTILINE))
    assert choices("precision") | choices("sparsity") | set(FORMATS) <= shown
    assert {"CUDA", "torch.compile", "RAM"} <= shown
    assert torch.__version__ in out
    assert list(tmp_path.iterdir()) == []


def test_modes_are_what_training_decides():
    found = rows(tables.modes(CPU))
    assert found.keys() == choices("precision")
    for name, (computes, why) in found.items():
        native = not emulated(MODES["amp" if name == "amp_fp16" else name], CPU, "auto")
        assert (computes, bool(why)) == ("natively" if native else "emulated", not native)
    assert found["tf32"][1] == "this CPU has no TF32"
    assert "precision.emulate=never" in found["amp"][1]  # slow, but there
    assert not emulated(MODES["amp"], CPU, "never")


def test_formats_and_backends_are_what_serving_decides():
    found = rows(tables.formats(CPU))
    assert list(found) == list(FORMATS)
    for fmt, (there, why) in found.items():
        if there == "–":
            with pytest.raises(UserError, match=re.escape(why)):
                mode_of(fmt, CPU)
            continue
        assert mode_of(fmt, CPU)
        served = set(there.split(", "))
        assert served == set(backends("auto", fmt, CPU))
        explained = {name for part in why.split("; ") for name in part.split(": ")[0].split(", ")}
        assert served | explained == set(BACKENDS)
        assert not served & explained


def test_sparsity_trains_everywhere_and_is_served_where_the_device_has_kernels():
    found = rows(tables.patterns(CPU))
    assert found.keys() == choices("sparsity")
    assert {trains for trains, *_ in found.values()} == {"yes"}
    assert found["2of4"][1:] == ["–", "needs a CUDA device"]
    assert found["nofm"][1:] == ["–", "no hardware is faster with nofm"]


def test_a_missing_runtime_shows_its_install_line(without):
    without("onnxruntime")
    there, why = rows(tables.formats(CPU))["fp32"]
    assert "onnx" not in there.split(", ")
    assert f"onnxruntime not installed; pip install -e '.[deploy]' in {ROOT} brings them" in why
    assert rows(tables.formats(CPU))["int8"][0] == "–"


@pytest.mark.parametrize(("version", "here"), [("0.1", "no"), (None, "no"), ("99.0", "yes")])
def test_an_optional_package_must_be_there_and_new_enough(monkeypatch, version, here):
    def installed(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    names, state, how = rows(tables.packages())["submitit"]
    assert (names, state) == ("hydra-submitit-launcher", here)
    how_else = f"pip install -e '.[submitit]' in {ROOT} brings hydra-submitit-launcher>=1.2"
    assert how == ("" if here == "yes" else how_else)


@pytest.mark.parametrize("library", ["torch", "torchvision"])
def test_a_library_that_does_not_load_is_one_line(doctor, monkeypatch, library):
    load = importlib.import_module

    def fail(name):
        if name == library:
            raise RuntimeError("operator torchvision::nms\ndoes not exist")
        return load(name)

    monkeypatch.setattr(command.importlib, "import_module", fail)
    code, out, err = doctor()
    assert (code, out) == (1, "")
    assert err.startswith(
        f"error: import {library} fails (RuntimeError: operator torchvision::nms does not exist). pip install"
    )
    assert err.count("\n") == 1
