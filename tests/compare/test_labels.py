"""label=: the name of a setting in tables, plots and verdicts, which changes neither folder nor result."""

from dataclasses import replace

from made_runs import AMP, CONTROL, compared, only, seeds

from mpx.compare.groups import by_label


def labelled(runs, label):
    return [replace(run, label=label) for run in runs]


def test_a_label_is_the_settings_name():
    group, rows = only(compared([*labelled(CONTROL, "baseline"), *AMP]))
    assert list(rows) == ["baseline", "amp-dense"]
    assert group.control == "baseline"
    assert "3.10 × as fast as baseline" in group.train_verdict
    assert "baseline is fp32-dense" in group.notes


def test_a_label_changes_no_decision():
    _, plain = only(compared([*CONTROL, *AMP]))
    _, rows = only(compared([*CONTROL, *labelled(AMP, "half precision")]))
    assert replace(rows["half precision"].decision) == plain["amp-dense"].decision
    assert rows["half precision"].speedup == plain["amp-dense"].speedup


def test_a_control_by_its_label():
    runs = labelled(seeds("fp32-dense optimizer.lr=0.05", [0.9, 0.91]), "baseline")
    assert by_label([*runs, *AMP], "baseline") == "fp32-dense optimizer.lr=0.05"
    assert by_label([*runs, *AMP], "amp-dense") == "amp-dense"
