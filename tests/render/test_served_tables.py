"""How settings were served, in every form: the terminal, Markdown and HTML show the same table."""

from dataclasses import replace

import pytest
from made_runs import AMP, CONTROL, compared, only, served

from mpx.render.comparison_tables import print_comparison, served_tables
from mpx.render.html import html_report
from mpx.render.report import markdown_report
from mpx.render.table import text_of

TITLE = "Served on NVIDIA H200, latency at batch 1, samples/s at batch 256"


def two_ways(run):
    accurate, sparse = run.setting != "amp-dense" or run.seed > 0, run.setting == "amp-dense"
    slow = served(
        "fp16",
        1000.0 * (1 + run.seed),
        value=run.metrics["test/accuracy"],
        exclusive=None if sparse else True,
    )
    fast = (served("int8", 9000.0, sparse=True, value=0.9, accurate=accurate),) if run.seed < 2 else ()
    return replace(run, served=(slow, *fast))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return compared([*map(two_ways, CONTROL), *map(two_ways, AMP)], folder=tmp_path_factory.mktemp("s"))


def test_settings_by_the_ways_in_which_they_were_served(comparison):
    (table,) = served_tables(only(comparison)[0], {})
    assert table.title == TITLE
    assert [column.head for column in table.columns] == [
        "setting",
        "figure",
        "Dense FP16, graph",
        "Sparse INT8, graph",
    ]
    rows = {(text_of(first), name): [text_of(cell) for cell in cells] for first, name, *cells in table.rows}
    assert rows["fp32-dense", "test accuracy"] == ["0.9520 ± 0.0016", "0.9000 (2 of 5 seeds)"]
    assert rows["amp-dense", "test accuracy"][1] == "0.9000 (less accurate, 2 of 5 seeds)"
    assert rows["fp32-dense", "samples/s"] == ["3,000 ± 1,581", "9,000"]
    assert rows["amp-dense", "samples/s"] == ["3,000 ± 1,581 (shared)", "9,000"]
    assert rows["amp-dense", "latency p50, ms"] == ["0.500 (shared)", "0.500"]
    assert rows["fp32-dense", "latency p99, ms"] == ["0.600", "0.600"]
    assert rows["fp32-dense", "size, MiB"] == ["41.0", "41.0"]


def test_latency_by_another_way_is_marked(comparison):
    """Also where only some seeds had it."""

    def ways(run):
        return (
            served(exclusive=False, cpu_used_by_others=0.2, latency_by="dense by eager"),
            served("int8", latency_by="by eager" if run.seed else None),
        )

    found = compared([replace(run, served=ways(run)) for run in (*CONTROL, *AMP)], folder=comparison.folder)
    (table,) = served_tables(only(found)[0], {})
    rows = {name: [text_of(cell) for cell in cells] for _, name, *cells in table.rows}
    assert rows["latency p50, ms"] == ["0.500 (dense by eager, shared, 20%)", "0.500 (by eager or by graph)"]
    assert rows["samples/s"] == ["5,000 (shared, 20%)", "5,000"]


def test_each_device_and_batch_size_has_a_table_of_its_own():
    runs = [
        replace(run, served=(served(), served(batch=(8, 64)), served(device="NVIDIA L4", backend="compile")))
        for run in CONTROL
    ]
    group = only(compared([*runs, *AMP]))[0]
    assert [(table.title, len(table.columns)) for table in served_tables(group, {})] == [
        ("Served on NVIDIA H200, latency at batch 8, samples/s at batch 64", 3),
        (TITLE, 3),
        ("Served on NVIDIA L4, latency at batch 1, samples/s at batch 256", 3),
    ]


def test_on_the_terminal_in_markdown_and_on_the_page(comparison, capsys):
    print_comparison(comparison)
    printed = capsys.readouterr().out
    assert TITLE in printed
    assert "Sparse INT8, graph" in printed
    assert max(map(len, printed.splitlines())) <= 120
    markdown = markdown_report(comparison, [[]])
    assert f"{TITLE}:\n\n| setting | figure | Dense FP16, graph | Sparse INT8, graph |" in markdown
    page = html_report(comparison, [[]], {})
    assert f"<h3>{TITLE}</h3>" in page
    assert "<td>3,000<small>± 1,581</small>" in page
    assert "Served on" not in html_report(compared([*CONTROL, *AMP]), [[]], {})
