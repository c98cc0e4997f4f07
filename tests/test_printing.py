"""Printing does not fail at a character that the encoding of stdout or stderr lacks."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from mpx.system.printing import replace_unprintable
replace_unprintable()
for stream in (sys.stdout, sys.stderr):
    print("10×128 …", "\\udcff", file=stream, flush=True)
"""


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("latin1", b"10\xd7128 ? ?\n"), ("ascii:strict", b"10?128 ? ?\n"), ("utf-8", "10×128 … ?\n".encode())],
)
def test_a_character_that_the_encoding_lacks_becomes_a_question_mark(encoding, text):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}
    )
    assert (done.stdout, done.stderr) == (text, text)


def test_a_closed_stream_is_left_alone():
    words = [
        "sh",
        "-c",
        f'{sys.executable} -c "$0" 2>&-',
        PROGRAM.replace("(sys.stdout, sys.stderr)", "(sys.stdout,)"),
    ]
    assert subprocess.run(words, capture_output=True).returncode == 0
