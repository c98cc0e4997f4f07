"""Ctrl-C while a command starts: nothing is shown, and nothing is left."""

import json
import os
import signal
import subprocess
import sys

import pytest
from experiment import EXPERIMENTS
from hydra.errors import ConfigCompositionException
from processes import wait_for

from mpx.settings.front_door import errors_in_one_line
from mpx.sweep import warm

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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process forks the jobs")
def test_a_starter_of_jobs_leaves_ctrl_c_to_the_sweep(tmp_path):
    """The sweep's process gets it, too."""
    here = "import os, signal, pathlib\nos.kill(os.getpid(), signal.SIGINT)\npathlib.Path(os.environ['PASSED']).touch()\n"
    (tmp_path / "sitecustomize.py").write_text(here)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    starter = warm.Starter(os.environ | {"PYTHONPATH": path, "PASSED": str(tmp_path / "passed")})
    wait_for(lambda: (tmp_path / "passed").exists() or starter.process.poll() is not None)
    assert starter.process.poll() is None
    starter.end()
    assert starter.process.poll() is not None
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_starter_that_cannot_start_leaves_ctrl_c_as_it_was(monkeypatch):
    def fails(*_, **__):
        raise BlockingIOError("the system has no process left")

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(BlockingIOError):
        warm.Starter(os.environ)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
