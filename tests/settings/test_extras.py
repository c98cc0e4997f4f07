"""What messages say about optional packages is right where mpx is: in a checkout, or installed from a
wheel.
"""

from documents import ROOT

from mpx.settings import choices


def test_a_checkout_names_its_folder():
    assert choices.install("deploy") == f"pip install -e '.[deploy]' in {ROOT}"


def test_a_wheel_takes_the_mpx_that_is_installed(monkeypatch, tmp_path):
    (tmp_path / "mpx" / "conf").mkdir(parents=True)
    monkeypatch.setattr(choices, "PACKAGE", tmp_path / "mpx")
    monkeypatch.setattr(choices, "CONF", tmp_path / "mpx" / "conf")
    assert choices.install("deploy") == "pip install 'mpx[deploy]'"
