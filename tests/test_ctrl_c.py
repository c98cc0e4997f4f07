"""Ctrl-C while a command starts: nothing is shown, and nothing is left."""

import json
import os
import signal
import subprocess
import sys

import pytest
from experiment import EXPERIMENTS
from hydra.errors import ConfigCompositionException

from mpx.settings.front_door import errors_in_one_line

AT_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def interrupted(folder, at, *words, options=()):
    """`python options -m words`, with Ctrl-C when it imports the module `at`."""
    (folder / "path").mkdir()
    (folder / "path" / "sitecustomize.py").write_text(AT_IMPORT)
    path = os.pathsep.join(filter(None, [str(folder / "path"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *options, "-m", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": path, "AT": at},
    )


@pytest.mark.parametrize("words", [["mpx.train", "-m", "seed=0,1"], ["mpx.compare"], ["mpx.deploy"], ["mpx.bench"], ["mpx.doctor"]])
def test_a_command_that_imports_ends_at_once(tmp_path, words):
    ended = interrupted(tmp_path, "hydra", *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
    assert os.listdir(tmp_path) == ["path"]


def test_an_option_of_pythons_changes_nothing(tmp_path):
    ended = interrupted(tmp_path, "hydra", "mpx.bench", options=("-W", "ignore"))
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_a_program_of_ones_own_keeps_its_handler(tmp_path):
    (script := tmp_path / "mpx-own.py").write_text("import signal, mpx; print(signal.getsignal(2) is signal.default_int_handler)")
    assert subprocess.run([sys.executable, script], capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("scipy", ["mpx.compare", f"results={EXPERIMENTS / 'grid' / 'results.csv'}"]),
        ("torch", ["mpx.bench", "what=formats", "accelerator=cpu"]),
        ("torch", ["mpx.deploy", "run=run"]),
        ("mpx.doctor.serving", ["mpx.doctor"]),
    ],
)
def test_a_command_that_works_may_tidy_up(tmp_path, at, words):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.ckpt").touch()
    record = {
        "schema_version": 1,
        "status": "completed",
        "setting": {},
        "metrics": {},
        "config": {key: {} for key in ("model", "data", "trainer")},
    }
    (tmp_path / "run" / "result.json").write_text(json.dumps(record))
    ended = interrupted(tmp_path, at, *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_an_error_over_ctrl_c_is_ctrl_c():
    def compose():
        try:
            raise KeyboardInterrupt
        finally:
            raise ConfigCompositionException  # as by Hydra, after OmegaConf has failed to put a flag back

    with pytest.raises(KeyboardInterrupt), errors_in_one_line():
        compose()
