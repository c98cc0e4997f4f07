"""What messages say about optional packages is right where mpx is: in a checkout, or installed from a
wheel.
"""

import re
import subprocess

from documents import ROOT

from mpx.settings import extras


def test_a_checkout_names_its_folder():
    assert extras.install("deploy") == f"pip install -e '.[deploy]' in {ROOT}"


def test_a_wheel_takes_the_mpx_that_is_installed(monkeypatch, tmp_path):
    (tmp_path / "mpx" / "conf").mkdir(parents=True)
    monkeypatch.setattr(extras, "PACKAGE", tmp_path / "mpx")
    monkeypatch.setattr(extras, "CONF", tmp_path / "mpx" / "conf")
    assert extras.install("deploy") == "pip install 'mpx[deploy]'"


def test_no_other_file_says_how():
    files = subprocess.run(
        ["git", "ls-files", "mpx", "conf", "docs", "README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    by_name = [
        path
        for path in files.stdout.split()
        if "pip install 'mpx" in (ROOT / path).read_text(errors="replace")
    ]
    assert by_name == ["mpx/settings/extras.py"]
    code = [path for path in files.stdout.split() if path.endswith(".py")]
    assert [path for path in code if re.search(r"pip install -e", (ROOT / path).read_text())] == [
        "mpx/settings/extras.py"
    ]
