"""Heavy imports are not interrupted by garbage collections, nor is what they make collected."""

import gc
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from few_steps import FEW_STEPS

from mpx.deploy import jobs
from mpx.imports import heavy
from mpx.runs import outcome


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


def test_a_run_imports_so(train, monkeypatch):
    begun = []
    monkeypatch.setattr(outcome, "heavy", lambda: begun.append(True) or nullcontext())
    assert train("model=mlp", *FEW_STEPS).code == 0
    assert begun == [True]


def test_serving_imports_so(monkeypatch):
    class Imports(Exception):
        pass

    def refuse():
        raise Imports

    monkeypatch.setattr(jobs, "heavy", refuse)
    with pytest.raises(Imports):
        jobs._serve(Path(), {}, "cpu", None)
