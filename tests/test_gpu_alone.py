"""Tests that need a GPU to themselves do not run beside others: a worker of pytest may use the GPU once they
have begun.
"""

import importlib.util

import pytest
from documents import ROOT


@pytest.fixture
def setup(request):
    """As before each test of tests/gpu."""
    spec = importlib.util.spec_from_file_location("conftest_of_gpu", ROOT / "tests" / "gpu" / "conftest.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return lambda: module.pytest_runtest_setup(request.node)


def test_beside_other_workers(setup, request, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    request.node.add_marker("alone")
    with pytest.raises(pytest.skip.Exception) as skipped:
        setup()
    why = (
        "pytest runs 2 tests at the same time. Run it by `pytest tests/gpu -n 0 -m alone` when nothing "
        "else does"
    )
    assert str(skipped.value) == f"needs the GPU to itself: {why}"


def test_one_that_minds_no_company(setup, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    setup()
