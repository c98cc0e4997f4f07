"""report.md: a table that Markdown can read, pictures that are there, and names taken literally."""

import re

import pytest
from made_comparison import made_comparison, made_group, write_runs
from made_runs import compared, seeds

from mpx.render.report import group_table, write


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    comparison = made_comparison(
        tmp_path_factory.mktemp("study"),
        made_group(diverged=("amp-dense",)),
        left_out=(("a/seed0", "failed: x|y"),),
    )
    write_runs(comparison)
    write(comparison)
    return comparison


def test_pictures_are_there(study):
    links = re.findall(r"!\[[^\n]*\]\(([^)]+)\)", (study.folder / "report.md").read_text(encoding="utf-8"))
    assert len(links) == 8
    assert all((study.folder / link).is_file() for link in links)


def test_the_table_has_a_row_per_setting_and_equal_columns(study):
    head, rule, *rows = group_table(study.groups[0]).splitlines()
    assert len(rows) == 6
    assert {len(re.split(r"(?<!\\)\|", line)) for line in (head, rule, *rows)} == {15}
    row = study.groups[0].rows[2]
    assert f"{row.metric.mean:.4f} ± {row.metric.std:.4f}" in rows[2]
    assert "3, 1 diverged" in rows[2]
    assert f"{row.speedup.ratio:.2f}× ({row.speedup.low:.2f} to {row.speedup.high:.2f})" in rows[2]
    assert "| control |" in rows[0]


def test_left_out_and_commands(study):
    text = (study.folder / "report.md").read_text(encoding="utf-8")
    assert "- `a/seed0`: failed: x\\|y" in text
    assert "```bash\npython -m mpx.train -m study=grid" in text


def test_a_metric_is_escaped_wherever_it_is_named(tmp_path):
    runs = seeds("fp32-dense", [1.0, 1.1], metric="val/a|<b>_c") + seeds(
        "amp-dense", [1.0, 1.2], metric="val/a|<b>_c"
    )
    comparison = compared(runs, metric="val/a|<b>_c", metric_goal="min", folder=tmp_path)
    write(comparison)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Compared by val a\\|&lt;b&gt;\\_c, margin" in text
    assert "<b>" not in text.partition("## To repeat it")[0]
