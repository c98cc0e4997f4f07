"""mpx.run and mpx.judge in the kernel of a real notebook: tables are rendered, and a mistake does not end the
kernel.
"""

import os
import sys

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
    folder = tmp_path_factory.mktemp("notebook")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    client = nbclient.NotebookClient(
        book, timeout=170, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    client.execute(env=environment)
    return [cell.outputs for cell in book.cells]


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
    assert any("samples/s" in html for html in rendered(cells[1]))


@pytest.mark.slow
def test_a_mistake_is_an_error_of_its_cell(cells):
    (error,) = (output for output in cells[2] if output.output_type == "error")
    assert (error.ename, error.evalue[:21]) == ("UserError", "optimizer.lr=-1 must ")
    assert cells[3][0].data["text/plain"] == "'the kernel goes on'"
