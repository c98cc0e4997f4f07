"""sparsity.backend=apex where it cannot be used: one line that says why and what to do, before anything is
trained.
"""

import sys

import pytest
import torch
from few_steps import FEW_STEPS
from refused import assert_refused

INSTALL = (
    "NVIDIA's is installed by pip install -v --no-build-isolation "
    "git+https://github.com/NVIDIA/apex; or use sparsity.backend=mpx."
)
APEX = ["sparsity=2of4", "sparsity.backend=apex"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """installed(*files): import apex then finds a package with these files, whatever the machine has."""

    def put(*files: str) -> str:
        for name in [name for name in sys.modules if name.split(".")[0] == "apex"]:
            monkeypatch.delitem(sys.modules, name)
        if not files:
            monkeypatch.setitem(sys.modules, "apex", None)  # Python's way of saying: there is none
        for file in files:
            (tmp_path / "site" / "apex" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / "apex" / file).write_text("raise RuntimeError('was imported')\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return str(tmp_path / "site" / "apex")

    yield put
    for name in [name for name in sys.modules if name.split(".")[0] == "apex"]:
        sys.modules.pop(name)


def test_no_apex(train, installed):
    installed()
    assert_refused(train(*APEX), f"error: sparsity.backend=apex: import apex finds nothing. {INSTALL}")


def test_the_web_toolkit_of_that_name(train, installed):
    """PyPI's apex 0.9.10dev has apex/__init__.py, models, forms and views, and no contrib."""
    where = installed("__init__.py", "models.py", "forms.py", "lib/__init__.py")
    whose = (
        f"import apex finds {where}, which is not NVIDIA's (PyPI's package of that name is a web "
        "toolkit; pip uninstall apex)."
    )
    assert_refused(train(*APEX), f"{whose} {INSTALL}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "sparsity.recipe=sr_ste",
            "sparsity.backend=apex with sparsity.recipe=sr_ste: apex's ASP prunes once.",
        ),
        (
            "trainer.accelerator=cpu",
            "sparsity.backend=apex with trainer.accelerator=cpu: apex's ASP needs a CUDA",
        ),
        ("sparsity.backend=apx", "sparsity.backend=apx must be one of mpx, apex."),
        ("sparsity=nofm", "the chosen sparsity has no backend; use sparsity=2of4 "),
    ],
)
def test_what_apex_has_no_answer_to(train, installed, words, message):
    installed("contrib/sparsity/asp.py", "__init__.py")
    assert_refused(train(*APEX, words), message)


def test_no_device(train, installed, monkeypatch):
    installed("contrib/sparsity/asp.py", "__init__.py")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = train("model=mlp", *APEX, *FEW_STEPS)
    assert_refused(
        ran,
        "sparsity.backend=apex: apex's ASP needs a CUDA device, and none is visible here. "
        "Use sparsity.backend=mpx.",
    )
