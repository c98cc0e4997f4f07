"""Write a comparison into the study's folder: report.html, report.md, plots/ and a TensorBoard run."""

from pathlib import Path

from mpx.compare.comparison import Comparison
from mpx.progress import track
from mpx.render.html import html_report
from mpx.render.markdown import PLOTS, markdown_report
from mpx.render.plots.batch_scaling import NAME, growth_picture
from mpx.render.plots.colours import styles
from mpx.render.plots.draw import PARTS, group_curves, pictures
from mpx.render.plots.picture import Picture, save
from mpx.render.summary_run import FOLDER, write_summary_run
from mpx.whole_file import write_whole

HTML, MARKDOWN = PAGES = ("report.html", "report.md")
FOLDERS = (PLOTS, FOLDER)  # of what is written beside them


def write(comparison: Comparison) -> list[Path]:
    """Write the report and return the written files: report.html, report.md, the plots, and the events of `_report` and the runs below it.

    Everything is drawn before the first file is written, and each file is replaced atomically, so a failure leaves the old files.
    """
    by_setting = styles(comparison)
    curves, drawn = [], []
    for group in track(comparison.groups, "drawing", len(comparison.groups)):
        curves.append(group_curves(group, comparison))
        drawn.append(pictures(group, comparison, curves[-1], by_setting))
    growth = growth_picture(comparison)
    html, markdown = comparison.folder / HTML, comparison.folder / MARKDOWN
    pages = {html: html_report(comparison, drawn, by_setting, growth), markdown: markdown_report(comparison, drawn, growth)}
    plots = save_all([one for group in drawn for one in group] + ([growth] if growth else []), comparison.folder / PLOTS)
    for path, text in pages.items():
        write_whole(path, text)
    return [*pages, *plots, *write_summary_run(comparison, drawn, curves, growth)]


def save_all(drawn: list[Picture], folder: Path) -> list[Path]:
    """Write the drawn pictures, then remove those of an earlier report that were not replaced."""
    written = [path for one in drawn if one.svg is not None for path in save(one, folder)]
    for name in (NAME, *(f"*--*-{part}" for part in PARTS)):
        for path in {*folder.glob(f"{name}.svg"), *folder.glob(f"{name}.png")}.difference(written):
            path.unlink(missing_ok=True)
    return written
