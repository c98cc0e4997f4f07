"""Write a comparison into the study's folder: report.html, report.md, plots/ and the TensorBoard run
`_report`.

`_report` has the tables as text and the plots as images. It has no hyperparameters, so that it adds no row to
the HPARAMS table.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from mpx.compare.comparison import Comparison
from mpx.render.colours import styles
from mpx.render.figures import file_start, pictures
from mpx.render.html import html_report
from mpx.render.markdown import PLOTS, about, group_table, markdown_report, served_part, verdicts
from mpx.render.picture import Picture, save
from mpx.render.table import escaped
from mpx.system.printing import track
from mpx.system.whole_file import whole_folder, write_whole

HTML, MARKDOWN = PAGES = ("report.html", "report.md")
SUMMARY = "_report"


def write(comparison: Comparison) -> list[Path]:
    """Write the report and return the written files, without those of TensorBoard.

    Everything is drawn before the first file is written, and each is replaced as a whole, so a failure leaves
    the old files.
    """
    # groups with nothing to compare last
    ordered = sorted(comparison.groups, key=lambda group: all(row.decision is None for row in group.rows))
    comparison = replace(comparison, groups=tuple(ordered))
    by_setting = styles(comparison)
    groups = track(comparison.groups, "drawing", len(comparison.groups))
    drawn = [pictures(group, comparison, by_setting) for group in groups]
    html, markdown = comparison.folder / HTML, comparison.folder / MARKDOWN
    pages = {html: html_report(comparison, drawn, by_setting), markdown: markdown_report(comparison, drawn)}
    plots = save_all([one for group in drawn for one in group], comparison.folder / PLOTS)
    for path, text in pages.items():
        write_whole(path, text)
    write_summary_run(comparison, drawn)
    return [*pages, *plots]


def save_all(drawn: list[Picture], folder: Path) -> list[Path]:
    """Write the pictures, then remove those of an earlier report that were not replaced."""
    written = [path for one in drawn for path in save(one, folder)]
    for path in {*folder.glob("*--*.svg"), *folder.glob("*--*.png")}.difference(written):
        path.unlink(missing_ok=True)
    return written


def write_summary_run(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> None:
    """drawn: the pictures of each group."""
    from torch.utils.tensorboard import SummaryWriter  # torch, which nothing else of a comparison needs

    with whole_folder(comparison.folder / SUMMARY) as folder, SummaryWriter(str(folder)) as writer:
        for tag, text in _texts(comparison):
            writer.add_text(tag, text)
        for tag, png in _images(comparison, drawn):
            writer.add_image(tag, np.asarray(Image.open(io.BytesIO(png))), dataformats="HWC")


def _texts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "verdict", verdicts(comparison)
    for group in comparison.groups:
        start = file_start(group)
        yield f"table/{start}", f"{about(group, comparison)}\n\n{group_table(group)}"
        if served := served_part(group):
            yield f"served/{start}", served
    if comparison.left_out:
        yield (
            "left_out",
            "\n".join(f"- {escaped(folder)}: {escaped(reason)}" for folder, reason in comparison.left_out),
        )


def _images(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> Iterator[tuple[str, bytes]]:
    for group, pictures_of_group in zip(comparison.groups, drawn, strict=True):
        start = file_start(group)
        for one in pictures_of_group:
            yield f"{start}/{one.name.removeprefix(start + '-')}", one.png
