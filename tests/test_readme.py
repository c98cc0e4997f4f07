"""Every command in the README runs: as written, with overrides that shorten it; those that need files of the reader's compose."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from few_steps import FEW_STEPS

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("python -m mpx.train ")]
MEASURING = [line for block in BLOCKS for line in block.splitlines() if line.startswith("python -m mpx.bench ")]
COMPARING = [line for block in BLOCKS for line in block.splitlines() if line.startswith("python -m mpx.compare ")]
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(NET,) = (block for block in PYTHON if "class Net" in block)
APEX = {"checkpoint.pt": "import amp", "pruned.pt": "import ASP"}  # what the scripts for apex save, and what they import
SET_UP = ["pip install -e . && python -m mpx.train precision=amp sparsity=2of4", "pip install -e '.[test]' && pytest"]
NEEDS_FILES = ("DIR", "reviews.csv")


def test_the_two_set_up_commands_are_there():
    """.ci/run runs them."""
    assert all(any(line == command for block in BLOCKS for line in block.splitlines()) for command in SET_UP)


def test_no_other_kind_of_command():
    known = (*SET_UP, "tensorboard --logdir outputs/default")
    assert [line for block in BLOCKS for line in block.splitlines() if line not in (*known, *COMMANDS, *MEASURING, *COMPARING)] == []


@pytest.mark.parametrize("line", [line for line in COMMANDS if any(word in line for word in NEEDS_FILES)])
def test_command_on_files_of_the_reader_composes(command, line):
    arguments = shlex.split(line)[3:]
    ran = command(*(argument for argument in arguments if argument != "-m"), "--cfg", "job")  # Hydra shows no configuration of a sweep
    assert ran.code == 0, ran.err
    experiment = next((argument.removeprefix("experiment=") for argument in arguments if argument.startswith("experiment=")), "default")
    assert f"study: {experiment}" in ran.out


@pytest.mark.parametrize("line", [line for line in COMMANDS if not any(word in line for word in NEEDS_FILES)])
def test_command_runs(command, tmp_path, line):
    (tmp_path / "my_net.py").write_text(NET)
    arguments = shlex.split(line)[3:]
    ran = command(*arguments, *([] if "--help" in arguments else FEW_STEPS))
    assert ran.code == 0, ran.err
    assert "--help" in arguments or ran.folders


@pytest.mark.parametrize("line", MEASURING)
def test_bench_command_runs(tmp_path, line):
    small = ["size=64", "accelerator=cpu"]
    done = subprocess.run([sys.executable, *shlex.split(line)[1:], *small], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (what,) = re.findall(r"what=(\w+)", line)
    assert (tmp_path / "outputs" / "bench" / f"{what}.csv").is_file()


def test_compare_commands_run(command, tmp_path):
    """On one run; the first writes the results.csv that the last reads."""
    assert command("model=mlp", *FEW_STEPS).code == 0
    for line in COMPARING:
        done = subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stderr) == (0, "")
        assert "mlp on digits" in done.stdout
    assert COMPARING
    assert (tmp_path / "outputs" / "default" / "results.csv").is_file()


def test_own_model_is_complete():
    assert len([line for line in NET.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("saved", APEX)
def test_script_for_apex_runs(tmp_path, saved):
    (script,) = (block for block in PYTHON if APEX[saved] in block)
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / saved).is_file()


def test_tensorboard_starts_on_a_study(train):
    ran = train("model=mlp", *FEW_STEPS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", str(ran.outputs / "default"), "--port", str(port), "--load_fast", "false"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert f"{ran.folder.parent.name}/seed0" in until_listed(f"http://127.0.0.1:{port}/data/runs")
    finally:
        server.terminate()
        server.wait(timeout=30)


def until_listed(url, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = urllib.request.urlopen(url, timeout=5).read().decode()
        except OSError:
            found = ""
        if "seed0" in found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"{url} listed no run within {seconds} s")
