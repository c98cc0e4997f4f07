"""experiments/pretrained: its card has the verdicts of its table, which names no folder of a machine."""

import experiment
from documents import text

from mpx.compare.table import read_results
from mpx.render.table import escaped

HERE = experiment.EXPERIMENTS / "pretrained"


def test_the_card_has_the_verdicts_of_its_tables():
    rising, plain = experiment.script("card.py").compare_file(HERE / "results.csv", {}).groups
    assert "schedule.restart" in rising.changes
    assert len(plain.rows) == 8
    for group in (rising, plain):
        assert group.rows[0].setting == "fp32-dense"
        assert escaped(group.train_verdict) in text(HERE / "README.md")
        assert all(f"{row.metric.mean:.4f}" in text(HERE / "README.md") for row in group.rows)


def test_no_row_names_a_folder_of_the_machine():
    words = " ".join(str(run.environment) for run in read_results(HERE / "results.csv"))
    assert not [word for word in words.replace("'", " ").replace("=", " ").split() if word.startswith("/")]
