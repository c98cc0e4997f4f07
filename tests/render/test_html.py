"""report.html: what it says, that it needs nothing from outside, and that a browser has nothing to complain
about.
"""

import base64
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_comparison import made_comparison, made_group, write_runs
from made_runs import AMP, CONTROL, compared, only

from mpx.compare.comparison import Estimate
from mpx.render.html import html_report
from mpx.render.report import group_table, write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<script>alert('x')</script>&\"'"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    groups = (
        made_group(diverged=("amp-dense",), notes=(f"a note {EVIL}",)),
        made_group(
            ("fp32-dense", f"amp-dense data.path={EVIL.replace(' ', '_')}"),
            seeds=2,
            model="mlp",
            data="digits",
            emulated=True,
        ),
    )
    comparison = made_comparison(
        folder, *groups, left_out=((f"x/{EVIL}", f"half {EVIL}"),), study=f"grid {EVIL}"
    )
    write_runs(comparison)
    write(comparison)
    return comparison


@pytest.fixture(scope="module")
def page(study):
    return (study.folder / "report.html").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Checks that elements are nested, and keeps their names and links."""

    VOID = ("meta", "link", "br", "wbr")

    def __init__(self, text: str):
        super().__init__()
        self.stack, self.links, self.tags = [], [], []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.links += [attrs[key] for key in ("href", "src", "xlink:href") if key in attrs]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_nested_as_it_must_be_and_self_contained(page):
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert all(
        link.startswith(("#", "data:,")) or re.fullmatch(r"[\w.%~+=,/-]+/seed\d/(result\.json)?", link)
        for link in parsed.links
    )
    assert "@import" not in page
    assert "url(http" not in page


def test_what_users_typed_is_escaped(page):
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") >= 5  # title, heading, note, left out, setting


def test_every_run_has_a_row_with_links_that_lead_somewhere(study, page):
    links = [link for link in Page(page).links if link.endswith("result.json")]
    assert len(links) == len(study.runs) == 22
    from urllib.parse import unquote

    assert all((study.folder / unquote(link)).is_file() for link in links)


def test_verdict_comes_first_then_notes_left_out_commands_environment(page):
    text = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    order = [
        "<h1>Which setting trains each model fastest",
        "Fastest to train at no loss",
        "<h2>resnet18 on cifar10",
        "a note",
        "Left out (1)",
        "To repeat it",
        "Environment",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "python -m mpx.compare study=grid" in text
    assert "580.159.04" in text
    assert "2026-11-21" not in text  # when a run started is no part of what they have in common


def test_what_a_shared_device_measured_is_marked(tmp_path):
    """In the page and in Markdown; and the share of gradients that vanish has its column there."""
    group = made_group(("fp32-dense", "amp-dense"))
    shared, underflow = Estimate(1234.5, 20.25, 3), Estimate(0.0875, None, 1)
    rows = [
        replace(row, throughput=None, speedup=None, shared=shared, underflow=underflow) for row in group.rows
    ]
    group = replace(group, rows=tuple(rows))
    text = html_report(made_comparison(tmp_path, group), [[]], {})
    assert text.count("<td>1,234<small>± 20</small><small>(shared)</small></td>") == 2
    assert text.count("<td>8.750%</td>") == 2
    table = group_table(group)
    assert table.count("1,234 ± 20 (shared)") == table.count("8.750%") == 2
    assert "speed-up" not in table
    small = replace(group, rows=tuple(replace(row, underflow=Estimate(3.4e-7, 6e-8, 3)) for row in rows))
    assert group_table(small).count("0.000034% ± 0.000006%") == 2  # 0.000% would say that none vanishes


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_chromium_has_nothing_to_complain_about(study, tmp_path, scheme):
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
            f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr", "--v=0",
            f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}",
            "--window-size=900,700",
            f"file://{study.folder}/report.html",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert shot.is_file(), done.stderr
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    red, green, blue = corner(shot)
    assert (red + green + blue > 3 * 200) == (scheme == 1)  # the page's own paper, dark or light


def corner(path: Path) -> tuple[int, ...]:
    from matplotlib.image import imread

    return tuple(int(255 * part) for part in imread(path)[2, 2, :3])


def test_a_notebook_shows_sentences_table_and_pictures(tmp_path):
    comparison = compared([*CONTROL, *AMP], folder=tmp_path)
    group, _ = only(comparison)
    page = comparison._repr_html_()
    assert page.index(group.train_verdict) < page.index(group.evidence) < page.index("<table>")
    assert [page.count(tag) for tag in ("<tr>", "<td>amp-dense</td>", "<script")] == [3, 1, 0]
    pictures = re.findall(r'<img alt="([^"]+)"[^>]*src="data:image/png;base64,([^"]+)"', page)
    assert "Test accuracy against throughput" in [name for name, _ in pictures]
    assert all(base64.b64decode(data).startswith(b"\x89PNG") for _, data in pictures)
