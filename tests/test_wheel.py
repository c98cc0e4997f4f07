"""The wheel, installed in another environment and started from another folder, finds its configuration and
trains.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from few_steps import FEW_STEPS

from mpx.system.version import with_digest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[1]
# without PYTHONPATH, which may name a checkout
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def printed(*command, **how):
    return subprocess.run(command, check=True, capture_output=True, text=True, **how).stdout.strip()


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A new environment with the wheel; it borrows the libraries of this one, but not this one's editable
    mpx.
    """
    path = tmp_path_factory.mktemp("wheel")
    build = ["build", "--wheel", "--no-isolation", "--outdir", path / "dist"]
    printed(sys.executable, "-m", *build, REPOSITORY)
    (wheel,) = (path / "dist").glob("mpx-*.whl")
    venv.create(path / "venv", with_pip=False)
    python = path / "venv" / "bin" / "python"
    home = printed(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (Path(home) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    printed(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", home, wheel)
    return python


def test_wheel_carries_its_configuration(python, tmp_path):
    where = printed(python, "-c", "import mpx.train; print(mpx.train.CONF)", cwd=tmp_path, env=ALONE)
    assert "site-packages" in where
    assert sorted(p.relative_to(where) for p in Path(where).rglob("*.yaml")) == sorted(
        p.relative_to(REPOSITORY / "conf") for p in (REPOSITORY / "conf").rglob("*.yaml")
    )
    assert (Path(where).parent / "py.typed").is_file()  # without which type checkers ignore its annotations


def test_wheel_trains_from_any_folder(python, tmp_path):
    command = [python, "-m", "mpx.train", "model=mlp", *FEW_STEPS]
    done = subprocess.run(command, cwd=tmp_path, env=ALONE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("outputs/default/*/seed0/result.json")
    record = json.loads(result.read_text())
    assert record["status"] == "completed"
    # so that its speed is compared with that of a checkout
    assert record["environment"]["mpx"] == with_digest(REPOSITORY / "mpx")
