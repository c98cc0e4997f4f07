"""Printing never decides how a command ends, whatever stdout and stderr are."""

import json
import os
import subprocess
import sys

import pytest
from few_steps import FEW_STEPS
from processes import Fork

PROGRAM = """
import sys
from mpx.printing import print_without_failing
print_without_failing()
for stream in (sys.stdout, sys.stderr):
    print("10×128 …", "\\udcff", file=stream, flush=True)
sys.exit(7)
"""


def printed(redirection: str, **env: str) -> subprocess.CompletedProcess:
    """redirection: as a shell writes it."""
    words = ["bash", "-c", f'"$0" -c "$1" {redirection}; code=$?; [ $code = 7 ] && echo ended', sys.executable, PROGRAM]
    return subprocess.run(words, capture_output=True, env=os.environ | env)


@pytest.mark.parametrize(
    "redirection",
    [">/dev/full", "2>/dev/full", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "1</dev/null", "> >(true)"],
)
def test_what_cannot_be_written_is_dropped(redirection):
    assert printed(redirection).stdout.endswith(b"ended\n")


@pytest.mark.parametrize(
    ("encoding", "text"), [("latin1", b"10\xd7128 ? ?\n"), ("ascii:strict", b"10?128 ? ?\n"), ("utf-8", "10×128 … ?\n")]
)
def test_a_character_that_the_encoding_lacks_becomes_a_question_mark(encoding, text):
    done = printed("", PYTHONIOENCODING=encoding)
    text = text if isinstance(text, bytes) else text.encode()
    assert (done.stdout, done.stderr) == (text + b"ended\n", text)


def test_unbuffered_output_comes_at_once():
    late = PROGRAM.replace("sys.exit(7)", "print('at once'); __import__('os')._exit(7)")
    done = subprocess.run([sys.executable, "-u", "-c", late], capture_output=True)
    assert done.stdout.endswith(b"at once\n")


def test_a_non_blocking_pipe_gets_everything():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    much = PROGRAM.replace('"10×128 …"', '"x" * 1_000_000')
    process = subprocess.Popen([sys.executable, "-c", much], stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    with open(reader, "rb") as file:
        assert len(file.read()) > 1_000_000
    assert process.wait() == 7


@pytest.mark.parametrize(
    "before",
    [
        "import os; r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w)",
        pytest.param("import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); os.dup2(1, 2)", marks=pytest.mark.slow),
    ],
    ids=["| head", "full"],
)
def test_a_run_is_completed_though_nobody_reads(tmp_path, before):
    run = Fork("model=mlp", *FEW_STEPS, "sparsity=2of4", folder=tmp_path, before=before)
    assert run.wait() == 0
    (result,) = tmp_path.glob("outputs/*/*/*/result.json")
    assert json.loads(result.read_text())["status"] == "completed"
