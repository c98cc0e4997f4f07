"""The words of a command line, as mpx gives them to Hydra."""

from mpx.settings.extras import CONF
from mpx.settings.words import checked


def test_a_folder_with_an_equals_sign_needs_no_quotes(tmp_path, monkeypatch):
    """As tables show it. Where a comma or a bracket may be Hydra's, what is there decides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w=[8,8]" / "seed0").mkdir(parents=True)
    plain = ["run=a/lr=1/seed*", "run=w=[8,8]/seed0"]
    others = [
        "run=a/lr=1,b/lr=2",
        "run=v=[8,8]/seed0",
        'run="a/lr=1"',
        "run='a/lr=1'",
        "run=${oc.env:X,a=b}",
        r"run=a/lr\=1",
        "run=a",
        "a-b=1/c=2",
    ]
    assert checked([*plain, *others], ["run"], "mpx.deploy", CONF) == ['run="a/lr=1/seed*"', 'run="w=[8,8]/seed0"', *others]


def test_what_an_option_takes_is_no_choice():
    words = ["--cfg", "job", "--package", "trainer"]
    assert checked(words, ["trainer"], "mpx.train", CONF) == words
