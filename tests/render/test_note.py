"""A note about a study: at the top of the report, as text and nothing else."""

import re
from dataclasses import replace

import pytest
from made_comparison import made_comparison, made_group

from mpx.render.colours import styles
from mpx.render.comparison_tables import print_comparison
from mpx.render.html import html_report
from mpx.render.markdown import markdown_report

NOTE = "Which format\nis *fastest*?\n\n~~~\n\n- <script>x</script> | \x1b[31m\n"


@pytest.fixture
def noted(tmp_path):
    return replace(made_comparison(tmp_path, made_group()), note=NOTE)


def test_in_the_html_report(noted):
    page = html_report(noted, [[]], styles(noted))
    assert "<p>Which format is *fastest*?</p>" in page
    assert "<script>" not in page
    assert "\x1b" not in page
    assert page.index("Which format") < page.index('class="verdict"')


def test_in_the_markdown_report(noted):
    _, first, second, third, *_ = markdown_report(noted, [[]]).split("\n\n")
    assert first == r"Which format is \*fastest\*?"
    assert second == "&#126;&#126;&#126;"
    assert third == r"\- &lt;script&gt;x&lt;/script&gt; \| \x1b\[31m"


def test_on_the_terminal(noted, capsys):
    print_comparison(noted)
    assert re.match(r"Which format is \*fastest\*\?\s+~~~", capsys.readouterr().out)
