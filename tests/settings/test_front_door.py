"""The words of a command line, as mpx gives them to Hydra."""

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from mpx.runs.name import differences
from mpx.settings.extras import CONF
from mpx.settings.front_door import checked_words
from mpx.settings.values import dotted


def test_a_folder_with_an_equals_sign_needs_no_quotes(tmp_path, monkeypatch):
    """As tables show it. Where a comma or a bracket may be Hydra's, what is there decides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w=[8,8]" / "seed0").mkdir(parents=True)
    plain = ["run=a/lr=1/seed*", "run=w=[8,8]/seed0"]
    others = ["run=a/lr=1,b/lr=2", "run=v=[8,8]/seed0", 'run="a/lr=1"', "run=${oc.env:X,a=b}", "run=a"]
    assert checked_words([*plain, *others], ["run"], "mpx.deploy", CONF) == [
        'run="a/lr=1/seed*"',
        'run="w=[8,8]/seed0"',
        *others,
    ]


def test_the_settings_that_a_mapping_holds():
    plain = ["-m", "seed=0,1", "model.lr={sgd:1},{sgd:2}", 'label="{a:1}"', "model.lr={}"]
    assert list(dotted(plain)) == plain
    mappings = [
        "++model={lr:{sgd: 0.1,adamw :${optimizer.lr}},name:'a b'}",
        "+model.kwargs={on:true,sizes:[1,2]}",
    ]
    held = [
        "model.lr.sgd=0.1",
        "model.lr.adamw=${optimizer.lr}",
        "model.name=a b",
        "model.kwargs.on=true",
        "model.kwargs.sizes=[1, 2]",
    ]
    assert list(dotted(mappings)) == held


def test_two_spellings_are_one_setting():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for word in ("model.lr.sgd=0.05", "+model={lr:{sgd:0.05}}"):
            HydraConfig.instance().set_config(compose("train", [word], return_hydra_config=True))
            assert differences(compose("train", [word])) == {"optimizer.lr": 0.05}
