"""Writes what a comparison looks like: report.html, report.md, plots/ and a run for TensorBoard, into the study's folder."""

from pathlib import Path

from mpx.report.comparison import Comparison
from mpx.report.html import html_report
from mpx.report.markdown import PLOTS, markdown_report
from mpx.report.plots.draw import PARTS
from mpx.report.plots.halves import draw_all
from mpx.report.plots.picture import Picture, save
from mpx.report.plots.style import looks
from mpx.report.summary_run import write_summary_run


def write(comparison: Comparison) -> list[Path]:
    """The files written: report.html, report.md, the plots, the events of the run `_report`."""
    look = looks(comparison)
    found = draw_all(comparison)
    curves, drawn = [bands for bands, _ in found], [pictures for _, pictures in found]
    html, markdown = comparison.folder / "report.html", comparison.folder / "report.md"
    plots = save_all([one for pictures in drawn for one in pictures], comparison.folder / PLOTS)
    html.write_text(html_report(comparison, drawn, look), encoding="utf-8")
    markdown.write_text(markdown_report(comparison, drawn), encoding="utf-8")
    return [html, markdown, *plots, write_summary_run(comparison, drawn, curves)]


def save_all(drawn: list[Picture], folder: Path) -> list[Path]:
    """Write what was drawn, and remove pictures of an earlier report, of which there may be some whose setting is gone."""
    for part in PARTS:
        for path in (*folder.glob(f"*--*-{part}.svg"), *folder.glob(f"*--*-{part}.png")):
            path.unlink()
    return [path for one in drawn if one.svg is not None for path in save(one, folder)]
