"""Writes a comparison into the study's folder: report.html, report.md, plots/ and a run for TensorBoard."""

from pathlib import Path

from mpx.compare.comparison import Comparison
from mpx.render.html import html_report
from mpx.render.markdown import PLOTS, markdown_report
from mpx.render.plots.batch_scaling import NAME, growth_picture
from mpx.render.plots.draw import PARTS
from mpx.render.plots.looks import looks
from mpx.render.plots.parallel import Drawing
from mpx.render.plots.picture import Picture, save
from mpx.render.summary_run import write_summary_run
from mpx.whole_file import write_whole


def write(comparison: Comparison, drawing: Drawing | None = None) -> list[Path]:
    """The files written: report.html, report.md, the plots, the events of `_report` and of the runs below it.

    drawing: of this comparison, begun in other processes.

    Everything is drawn before the first file is written, and each file is replaced whole: a full disk or Ctrl-C leaves the old ones.
    """
    look = looks(comparison)
    found = (drawing or Drawing(comparison, ())).all()
    curves, drawn = [one.curves for one in found], [one.pictures for one in found]
    growth = growth_picture(comparison)
    html, markdown = comparison.folder / "report.html", comparison.folder / "report.md"
    pages = {html: html_report(comparison, drawn, look, growth), markdown: markdown_report(comparison, drawn, growth)}
    plots = save_all([one for pictures in drawn for one in pictures] + ([growth] if growth else []), comparison.folder / PLOTS)
    for path, text in pages.items():
        write_whole(path, text)
    return [*pages, *plots, *write_summary_run(comparison, drawn, curves, growth)]


def save_all(drawn: list[Picture], folder: Path) -> list[Path]:
    """Write what was drawn, then remove the pictures of an earlier report that are not written again."""
    written = [path for one in drawn if one.svg is not None for path in save(one, folder)]
    for name in (NAME, *(f"*--*-{part}" for part in PARTS)):
        for path in {*folder.glob(f"{name}.svg"), *folder.glob(f"{name}.png")}.difference(written):
            path.unlink(missing_ok=True)
    return written
