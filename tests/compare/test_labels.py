"""label=: the name of a setting in tables, plots and verdicts, which changes neither folder nor result."""

from dataclasses import replace

import pytest
from few_steps import FEW_STEPS
from made_runs import AMP, CONTROL, compared, only, seeds
from refused import assert_refused

from mpx.compare.collect import collect
from mpx.compare.control import by_label
from mpx.compare.results import from_csv, to_csv
from mpx.errors import UserError
from mpx.render.comparison_tables import setting


def labelled(runs, label):
    return [replace(run, label=label) for run in runs]


def test_a_label_is_the_settings_name():
    group, rows = only(compared([*labelled(CONTROL, "baseline"), *AMP]))
    assert list(rows) == ["baseline", "amp-dense"]
    assert group.control == "baseline"
    assert "3.10 times as fast as baseline" in group.train_verdict
    assert "baseline is fp32-dense" in group.notes


def test_a_label_of_several_words_stands_in_one_line():
    assert (setting("half precision", None).main, setting("half precision", None).small) == (("half precision",), ())
    assert setting("amp-dense optimizer.lr=0.1", None).small == (("optimizer.lr=0.1",),)


def test_a_label_changes_no_decision():
    _, plain = only(compared([*CONTROL, *AMP]))
    _, rows = only(compared([*CONTROL, *labelled(AMP, "half precision")]))
    assert replace(rows["half precision"].decision) == plain["amp-dense"].decision
    assert rows["half precision"].speedup == plain["amp-dense"].speedup


@pytest.mark.parametrize("label", ["mine", "fp32-dense"])
def test_a_name_of_two_settings_is_said_and_not_used(label):
    runs = [*labelled(AMP, label), *(CONTROL if label == "fp32-dense" else labelled(CONTROL, label))]
    group, rows = only(compared(runs))
    assert list(rows) == ["fp32-dense", "amp-dense"]
    (note,) = (note for note in group.notes if "label" in note)
    assert note.startswith(f'label="{label}" is a name of 2 settings (')
    assert note.endswith("give each a label of its own")


def test_settings_of_different_models_may_share_a_label():
    other = [replace(run, model="bert") for run in CONTROL]
    comparison = compared([*labelled(CONTROL, "baseline"), *labelled(other, "baseline")])
    assert [group.rows[0].setting for group in comparison.groups] == ["baseline", "baseline"]
    assert not any("give each" in note for group in comparison.groups for note in group.notes)


def test_the_newest_label_counts():
    old, new = (replace(run, label=label, environment={"started_at": label}) for run, label in zip(CONTROL, "12", strict=False))
    _, rows = only(compared([new, old, *AMP]))
    assert "2" in rows


def test_a_control_by_its_label():
    runs = labelled(seeds("fp32-dense optimizer.lr=0.05", [0.9, 0.91]), "baseline")
    assert by_label([*runs, *AMP], "baseline") == "fp32-dense optimizer.lr=0.05"
    assert by_label([*runs, *AMP], "amp-dense") == "amp-dense"


@pytest.mark.parametrize("name", ["auto", "fp32-dense"])
def test_a_label_takes_no_control_the_name_that_it_has_without(name):
    assert by_label([*CONTROL, *labelled(AMP, name)], name) == name


def test_results_csv_keeps_it():
    runs = labelled(CONTROL, "my baseline")
    assert from_csv(to_csv(runs), "results.csv") == runs
    assert "label" not in to_csv(CONTROL).splitlines()[0]
    with pytest.raises(UserError, match=r"label=\$x\$ is not a valid value"):
        from_csv(to_csv(runs).replace("my baseline", "$x$"), "results.csv")


def test_a_label_of_a_training(train):
    labels = ("baseline", "other")
    rans = [train("model=mlp", "if_exists=overwrite", f"label={label}", *FEW_STEPS) for label in labels]
    assert rans[-1].folder.parent.name.startswith("mlp-digits-fp32-dense-trainer")
    assert rans[-1].record["label"] == "other"
    ((run,), _) = collect(rans[-1].outputs / "default")
    assert run.label == "other"
    assert "label" not in run.setting


def test_a_label_that_a_table_cannot_show(train):
    ran = train("model=mlp", 'label="a|b"', *FEW_STEPS)
    assert_refused(ran, "label=a|b must be a name of at most 40 English letters")
    assert "For example label=baseline" in ran.err
