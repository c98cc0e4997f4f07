"""A forgotten initialize must not reach the next test; and networks that several tests use."""

import io
import os
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from types import ModuleType

import pytest
import torch
from helpers_for_asp import APEX_NETWORKS

from mpx.compat import amp


@pytest.fixture(autouse=True)
def _fresh_amp(monkeypatch):
    monkeypatch.setattr(amp._amp_state, "session", None)
    monkeypatch.setattr(amp._amp_state, "allow_incoming_model_not_fp32", False)


@pytest.fixture(scope="module")
def networks():
    """(name, model) of apex's permutation tests."""
    found = []
    with pytest.MonkeyPatch.context() as patched:
        for name in (
            "apex",
            "apex.contrib",
            "apex.contrib.sparsity",
            "apex.contrib.sparsity.permutation_lib",
        ):
            patched.setitem(sys.modules, name, ModuleType(name))
        sys.modules["apex.contrib.sparsity.permutation_lib"].Permutation = None
        torch.manual_seed(0)
        main = runpy.run_path(
            os.environ["MPX_APEX"] + "/apex/contrib/sparsity/test/test_permutation_application.py"
        )["main"]
    main.__globals__["test_model"] = lambda model, name: found.append((name, model)) is None
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lazy layers
        main()
    assert len(found) == APEX_NETWORKS
    return found
