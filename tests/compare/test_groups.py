"""Which control a run is compared with, and how the commands of a study are joined."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from made_runs import made

from mpx.compare.groups import AUTO, PRECISIONS, grouped, natural, ran
from mpx.compare.run import text_of
from mpx.compare.words import commands
from mpx.settings.compare import DEFAULTS, compare_command, typed_text
from mpx.settings.fields import FIELDS


def shapes(runs, control="fp32-dense"):
    """[(changes of the group, runs of the control, {setting: runs})]"""
    found = grouped(runs, control)
    return [
        (text_of(g.changes), len(g.control), {name: len(others) for name, others in sorted(g.others.items())})
        for g in found
    ]


def both_seeds(*settings):
    return [made(setting, seed) for setting in settings for seed in (0, 1)]


def test_what_all_runs_share_goes_into_the_title():
    runs = both_seeds(
        "fp32-dense trainer.max_epochs=2",
        "amp-dense trainer.max_epochs=2",
        "amp-2of4 sparsity.recipe=sr_ste trainer.max_epochs=2",
    )
    assert shapes(runs) == [
        ("trainer.max_epochs=2", 2, {"amp-2of4 sparsity.recipe=sr_ste": 2, "amp-dense": 2})
    ]


def test_a_control_of_each_batch_size():
    runs = both_seeds(
        *(
            f"{name}{change}"
            for name in ("fp32-dense", "amp-dense")
            for change in ("", " data.batch_size=256")
        )
    )
    assert shapes(runs) == [("", 2, {"amp-dense": 2}), ("data.batch_size=256", 2, {"amp-dense": 2})]


def test_without_a_control_of_that_batch_size_the_plain_one_is_taken():
    runs = both_seeds(
        "fp32-dense", "amp-dense data.batch_size=256", "amp-dense precision.loss_scale.initial=1"
    )
    assert shapes(runs) == [
        ("", 2, {"amp-dense data.batch_size=256": 2, "amp-dense precision.loss_scale.initial=1": 2})
    ]


def test_the_control_that_shares_most_changes_is_taken():
    runs = both_seeds(
        "fp32-dense",
        "fp32-dense data.batch_size=256",
        "amp-dense data.batch_size=256 precision.loss_scale.initial=1",
    )
    assert shapes(runs) == [
        ("", 2, {}),
        ("data.batch_size=256", 2, {"amp-dense precision.loss_scale.initial=1": 2}),
    ]


LRS = (
    "optimizer.lr=0.02 trainer.max_epochs=2",
    "optimizer.lr=0.05 trainer.max_epochs=2",
    "optimizer.lr=0.1 trainer.max_epochs=2",
)


def table(runs, control):
    """(what the one table's rows share, name of its control, its other rows, why that control)"""
    (members,) = grouped(runs, control)
    (name,) = {run.setting for run in members.control}
    return text_of(members.changes), name, sorted(members.others, key=natural), members.note


@pytest.mark.parametrize("control", ["fp32-dense", AUTO])
def test_a_sweep_over_one_hyperparameter_is_one_table(control):
    runs = both_seeds(*(f"fp32-dense {change}" for change in reversed(LRS)))
    assert table(runs, control) == (
        "trainer.max_epochs=2", f"fp32-dense {LRS[0]}", ["fp32-dense optimizer.lr=0.05",
        "fp32-dense optimizer.lr=0.1"],
        "the control is fp32-dense optimizer.lr=0.02; "
        """to take another, type it as 'control="fp32-dense optimizer.lr=0.05"'""",
    )  # fmt: skip


@pytest.mark.parametrize("control", ["fp32-dense", AUTO])
def test_where_the_default_value_was_swept_too_it_is_the_control(control):
    runs = both_seeds("fp32-dense trainer.max_epochs=2", *(f"fp32-dense {change}" for change in LRS[1:]))
    rows = ["fp32-dense optimizer.lr=0.05", "fp32-dense optimizer.lr=0.1"]
    assert table(runs, control) == ("trainer.max_epochs=2", "fp32-dense trainer.max_epochs=2", rows, None)


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (["amp_bf16-dense", "amp-dense", "fp8-dense"], "amp-dense"),
        (["16_mixed-dense", "32_true-dense", "bf16_mixed-dense"], "32_true-dense"),
        (["amp-2of4 sparsity.recipe=sr_ste", "amp-2of4", "amp-2of4 sparsity.recipe=one_shot"], "amp-2of4"),
    ],
)
def test_where_fp32_dense_did_not_run_the_nearest_to_it_is_the_control(there, taken):
    _, control, rows, why = table(both_seeds(*there), AUTO)
    assert (control, rows) == (taken, sorted({*there} - {taken}, key=natural))
    assert why.startswith(f"the control is {taken}; to take another, type it as ")
    typed = shlex.split(why.rpartition(" type it as ")[2])
    assert [OverridesParser.create().parse_override(word).value() for word in typed] == rows[:1]


def test_every_model_has_a_control_of_its_own():
    runs = [
        made("fp32-dense"),
        made("amp-dense"),
        made("amp-dense", model="lstm"),
        made("fp8-dense", model="lstm"),
    ]
    assert [(members.model, members.control[0].setting, members.note is None) for members in grouped(runs,
    AUTO)] == [
        ("lstm", "amp-dense", False), ("resnet18", "fp32-dense", True),
    ]  # fmt: skip
    assert [len(members.control) for members in grouped(runs, "fp32-dense")] == [0, 1]


def test_every_precision_has_its_rank():
    assert set(PRECISIONS) == set(FIELDS["precision.mode"].allowed.removeprefix("one of ").split(", "))


MIX = [f"{name} {change}" for name in ("fp32-dense", "amp-dense") for change in LRS[:2]]


@pytest.mark.parametrize(
    "name",
    [
        "amp-dense optimizer.lr=0.05",
        f"amp-dense {LRS[1]}",
        "amp-dense trainer.max_epochs=2 optimizer.lr=0.05",
    ],
    ids=["as the table shows it", "whole", "in another order"],
)
def test_a_setting_by_its_name_is_the_control_of_all_others(name):
    runs = both_seeds(*MIX)
    assert ran(runs, name)
    rows = ["amp-dense optimizer.lr=0.02", "fp32-dense optimizer.lr=0.02", "fp32-dense optimizer.lr=0.05"]
    assert table(runs, name) == ("trainer.max_epochs=2", f"amp-dense {LRS[1]}", rows, None)


@pytest.mark.parametrize(
    "name",
    ["amp-dense optimizer.lr=0.5", "amp-dense trainer.max_epochs=2", "tf32-dense optimizer.lr=0.05", "amp"],
)
def test_a_control_that_did_not_run(name):
    assert not ran(both_seeds(*MIX), name)


def test_runs_that_no_control_fits_stand_alone():
    runs = both_seeds(
        "fp32-dense optimizer.lr=0.1",
        "fp32-dense optimizer.lr=0.2",
        "amp-dense optimizer.lr=0.3",
        "amp-dense optimizer.lr=0.2",
    )
    assert shapes(runs) == [
        ("optimizer.lr=0.1", 2, {}),
        ("optimizer.lr=0.2", 2, {"amp-dense": 2}),
        ("optimizer.lr=0.3", 0, {"amp-dense": 2}),
    ]
    assert grouped(runs, AUTO)[-1].note == (
        "these runs fit no run of fp32-dense; to compare all with one setting, type "
        "'control=\"fp32-dense optimizer.lr=0.1\"'"
    )
    assert shapes(both_seeds("amp-dense"), "fp32-dense") == [("", 0, {"amp-dense": 2})]
    assert [members.note for members in grouped(both_seeds("amp-dense"), "fp32-dense")] == [
        "no run of fp32-dense here to compare with"
    ]


def test_commands_that_repeat_the_study():
    lines = [
        ("precision=amp seed=0", 0),
        ("seed=1 precision=amp if_exists=resume", 1),
        ("-cd other +x=1 project=mine 'model.widths=[64, 32]'", 0),
        ("precision=fp32 until=decided until.margin=0.005", 10),
    ]
    runs = [made(seed=seed, environment={"command": f"python -m mpx.train {line}"}) for line, seed in lines]
    assert commands([*runs, made(environment={"command": "python mine.py"})]) == (
        "python -m mpx.train --config-dir=other +x=1 'model.widths=[64, 32]' project=mine seed=0",
        "python -m mpx.train -m precision=amp seed=0,1",
        "python -m mpx.train precision=fp32 seed=10",
    )


def test_the_comparison_is_a_command_too():
    assert compare_command("s", **DEFAULTS) == "python -m mpx.compare study=s"
    assert compare_command("s", **DEFAULTS | {"control": "amp-dense", "margin": 0.005}).endswith(
        "study=s control=amp-dense margin=0.005"
    )
    named = compare_command("s", **DEFAULTS | {"control": "amp-dense optimizer.lr=0.05"})
    assert named.endswith("""study=s 'control="amp-dense optimizer.lr=0.05"'""")


@pytest.mark.parametrize(
    "text", ["default", "/tmp/a-b_1.2", "../out", "my runs=[1]", 'a"b', "$x {y}", "a\\", 'a\\"b']
)
def test_a_text_is_typed_so_that_the_shell_and_hydra_read_it(text):
    (word,) = shlex.split(typed_text("output_dir", text))
    (override,) = OverridesParser.create().parse_overrides([word])
    assert override.value() == text
    assert (typed_text("output_dir", text) == f"output_dir={text}") == (
        text in ("default", "/tmp/a-b_1.2", "../out")
    )
