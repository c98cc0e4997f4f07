"""The words of a command line, as mpx gives them to Hydra."""

from mpx.settings.front_door import checked_words


def test_a_folder_with_an_equals_sign_needs_no_quotes(tmp_path, monkeypatch):
    """As tables show it. Where a comma or a bracket may be Hydra's, what is there decides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w=[8,8]" / "seed0").mkdir(parents=True)
    plain = ["run=a/lr=1/seed*", "run=w=[8,8]/seed0"]
    others = ["run=a/lr=1,b/lr=2", "run=v=[8,8]/seed0", 'run="a/lr=1"', "run=${oc.env:X,a=b}", "run=a"]
    assert checked_words([*plain, *others], ["run"], "mpx.deploy") == [
        'run="a/lr=1/seed*"',
        'run="w=[8,8]/seed0"',
        *others,
    ]
