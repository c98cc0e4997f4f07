"""What messages say about optional packages is right where mpx is: in a checkout, or installed from a
wheel.
"""

from importlib.util import find_spec

from documents import ROOT
from refused import assert_refused

from mpx.settings import choices, reachable


def test_a_checkout_names_its_folder():
    assert choices.install("deploy") == f"pip install -e '.[deploy]' in {ROOT}"


def test_a_wheel_takes_the_mpx_that_is_installed(monkeypatch, tmp_path):
    (tmp_path / "mpx" / "conf").mkdir(parents=True)
    monkeypatch.setattr(choices, "PACKAGE", tmp_path / "mpx")
    monkeypatch.setattr(choices, "CONF", tmp_path / "mpx" / "conf")
    assert choices.install("deploy") == "pip install 'mpx[deploy]'"


def test_a_missing_package_is_named_with_the_command_that_installs_it(train, tmp_path, monkeypatch):
    monkeypatch.setattr(reachable, "find_spec", lambda name: None if name == "datasets" else find_spec(name))
    ran = train("model=mlp", "data=huggingface", f"data.path={tmp_path}")
    assert_refused(
        ran,
        "error: data=huggingface needs the package datasets, which is not installed. "
        f"{choices.install('data')} adds it.",
    )
