"""--help: every group and key with its comment in conf/, also those that a choice brings."""

import re

import pytest
from started import start

import mpx.bench.__main__ as bench
import mpx.compare.__main__ as compare
import mpx.deploy.__main__ as deploy
from mpx import train
from mpx.settings.choices import FIXED, GROUPS, SETTABLE
from mpx.settings.compare import COMPARE
from mpx.settings.deploy import DEPLOY
from mpx.settings.fields import BENCH, FIELDS

SHOWN = [key for key in FIELDS if key not in FIXED or key in SETTABLE]


@pytest.mark.parametrize(
    ("command", "keys"), [(train, SHOWN), (compare, COMPARE), (deploy, DEPLOY), (bench, BENCH)]
)
def test_every_key_has_its_comment(tmp_path, command, keys):
    ran = start(command.main, tmp_path, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(command.__doc__.strip())
    for key in keys:
        assert re.search(rf"^  {re.escape(key)}=.*(  +|\n {{34}})\S", ran.out, re.MULTILINE), key
    assert max(map(len, ran.out[len(command.__doc__) :].splitlines())) <= 120
    if command is train:
        groups = ran.out.split("--help GROUP explains it.")[1].split("Keys:")[0]
        assert re.findall(r"^  (\w+)", groups, re.MULTILINE) == list(GROUPS)


def test_one_group(tmp_path):
    ran = start(train.main, tmp_path, "--help", "sparsity")
    assert "  sparsity=dense                  no pruning\n" in ran.out
    assert re.search(
        r"^  sparsity.recipe=asp +when the model is pruned:\n +asp: train dense", ran.out, re.MULTILINE
    )
    assert "(of nofm)" in ran.out
    assert "optimizer.lr" not in ran.out


@pytest.mark.parametrize("topic", ["numerics", "metric", "precision.loss_scale", "until", "data.root"])
def test_one_key_or_the_keys_below_a_name(tmp_path, topic):
    ran = start(train.main, tmp_path, "--help", topic)
    assert ran.code == 0
    assert all(line.startswith((f"  {topic}", " " * 34)) for line in ran.out.splitlines())
