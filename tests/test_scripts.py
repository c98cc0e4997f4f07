"""The console scripts of pyproject.toml: Hydra's tab completion and the recorded command."""

import importlib
import os
import shlex
import subprocess
import sys
import tomllib

import pytest
from documents import ROOT, lines
from few_steps import FEW_STEPS

from mpx.measure.environment import SCRIPTS, command

ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
# pip's
STUB = (
    "#!{python}\nimport sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    "
    "sys.exit({function}())\n"
)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The environment of a shell that has the scripts."""
    folder = tmp_path_factory.mktemp("bin")
    for name, entry in ENTRIES.items():
        module, _, function = entry.partition(":")
        (folder / name).write_text(STUB.format(python=sys.executable, module=module, function=function))
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def shell(line, environment, folder):
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    return done.stdout


def test_each_command_has_a_script():
    assert {
        name: entry.partition(":")[0].removesuffix(".__main__") for name, entry in ENTRIES.items()
    } == SCRIPTS
    for module, _, function in (entry.partition(":") for entry in ENTRIES.values()):
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("mpx-train precision=f", {"precision=fp16_true", "precision=fp32", "precision=fp8"}),
        ("mpx-train sparsity=2of4 optimizer=", {"optimizer=adamw", "optimizer=sgd"}),
        ("mpx-compare con", {"control=", "confidence="}),
        ("mpx-bench wh", {"what="}),
    ],
)
def test_tab_completion(scripts, tmp_path, typed, offered):
    """As bash calls it, after eval "$(mpx-train -sc install=bash)"."""
    place = len(typed.split()) - 1
    asked = (
        f"COMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_CWORD={place}; hydra_bash_completion; echo "
        f"${{COMPREPLY[@]}}"
    )
    assert (
        set(shell(f'eval "$({typed.split()[0]} -sc install=bash)"; {asked}', scripts, tmp_path).split())
        == offered
    )
    assert list(tmp_path.iterdir()) == []


def test_what_the_page_shows_is_there():
    train, complete = lines([ROOT / "docs" / "python.md"])
    assert shlex.split(train)[0] in ENTRIES
    assert complete == 'eval "$(mpx-train -sc install=bash)"'  # as test_tab_completion does


@pytest.mark.slow
def test_a_sweep_by_the_script(scripts, tmp_path):
    """Also of a run on two devices. What a folder here is called does not matter."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    words = ["-m", "trainer.devices=1,2", "trainer.accelerator=cpu", "model=mlp", *FEW_STEPS]
    out = shell(shlex.join(["mpx-train", *words]), scripts, tmp_path)
    assert len(list(tmp_path.glob("outputs/default/*/seed*/result.json"))) == 2, out


@pytest.mark.parametrize(
    ("started", "apart"),
    [(["-c"], False), (["-P", "-c"], True), (["-I", "-c"], True)],
    ids=["plain", "safe path", "isolated"],
)
def test_a_process_of_mpx_looks_for_modules_where_its_parent_does(tmp_path, started, apart):
    """Python writes the current folder as '' where it runs a text, such as that of `python -c`."""
    words = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from mpx.system.launch import this_python; "
        "print(this_python()[1:])"
    )
    done = subprocess.run([sys.executable, *started, words], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == ("['-P', '-m']\n" if apart else "['-m']\n"), done.stderr


def test_the_recorded_command_is_the_one_of_the_module(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/bin/mpx-train", "seed=1", "data.path=my file"])
    assert command() == "python -m mpx.train seed=1 'data.path=my file'"
