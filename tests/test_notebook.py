"""mpx.run and mpx.judge in the kernel of a real notebook: tables are rendered, and a mistake does not end the
kernel. docs/first-study.ipynb runs, too.
"""

import os
import sys
from pathlib import Path

import pytest
from documents import ROOT
from few_steps import FEW_STEPS

nbclient = pytest.importorskip("nbclient", reason="pip install '.[test]' adds it")
pytest.importorskip("ipykernel", reason="pip install '.[test]' adds it")
nbformat = pytest.importorskip("nbformat")

CELLS = (
    f"import mpx\nmpx.run({['model=mlp', 'precision=amp_bf16', *FEW_STEPS]})['status']",
    "mpx.judge('default').study",
    "mpx.run(['optimizer.lr=-1'])",
    "'the kernel goes on'",
)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The outputs of each cell."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    executed(book, tmp_path_factory.mktemp("notebook"), timeout=170, allow_errors=True)
    return [cell.outputs for cell in book.cells]


def executed(book, folder, **how):
    """In this Python, also for commands that a cell gives to a shell."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client = nbclient.NotebookClient(book, resources={"metadata": {"path": str(folder)}}, **how)
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    client.execute(env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path})


def rendered(outputs):
    return [output.data["text/html"] for output in outputs if output.output_type == "display_data"]


@pytest.mark.slow
def test_a_run(cells):
    assert "test accuracy" in "".join(output.text for output in cells[0] if output.output_type == "stream")
    assert [output.data["text/plain"] for output in cells[0] if output.output_type == "execute_result"] == [
        "'completed'"
    ]
    assert not any(output.get("name") == "stderr" for output in cells[0])


@pytest.mark.slow
def test_a_comparison(cells):
    assert any("test accuracy" in html for html in rendered(cells[1]))


@pytest.mark.slow
def test_a_mistake_is_an_error_of_its_cell(cells):
    (error,) = (output for output in cells[2] if output.output_type == "error")
    assert (error.ename, error.evalue[:21]) == ("UserError", "optimizer.lr=-1 must ")
    assert cells[3][0].data["text/plain"] == "'the kernel goes on'"


BOOK = ROOT / "docs" / "first-study.ipynb"


def shown(book):
    """The HTML of the comparison, the last output."""
    *_, last = (output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)
    return last.data["text/html"]


def test_the_page_is_small_and_ends_with_a_verdict():
    assert BOOK.stat().st_size < 300_000
    html = shown(nbformat.read(BOOK, 4))
    assert "at no loss of accuracy" in html
    assert html.count("data:image/png") >= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_page_runs(tmp_path):
    book = nbformat.read(BOOK, 4)
    executed(book, tmp_path, timeout=1000)
    assert "at no loss of accuracy" in shown(book)
    assert len(list(tmp_path.glob("outputs/mine/*/seed*/result.json"))) >= 8
