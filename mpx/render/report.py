"""Write a comparison into the study's folder: report.html, report.md, plots/ and the TensorBoard run
`_report`.

`_report` has the tables as text and the plots as images. Below it, one run per setting has the bands of its
seeds, since TensorBoard colours curves by run; it has no hyperparameters, so that it adds no row to the
HPARAMS table. The layout of `_report` adds a category of bands to the CUSTOM SCALARS dashboard of the study's
runs.
"""

import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mpx.compare.comparison import Comparison
from mpx.compare.words import title
from mpx.render.colours import styles
from mpx.render.curves import LOSSES, NUMERICS, Bands, spaced
from mpx.render.figures import PARTS, file_start, group_curves, pictures
from mpx.render.html import html_report
from mpx.render.markdown import PLOTS, about, group_table, markdown_report, served_part, verdicts
from mpx.render.picture import Picture, save
from mpx.render.table import escaped
from mpx.system.progress import track
from mpx.system.whole_file import whole_folder, write_whole

HTML, MARKDOWN = PAGES = ("report.html", "report.md")
SUMMARY = "_report"
FOLDERS = (PLOTS, SUMMARY)  # of what is written beside the pages
POINTS = 100  # points per band
MAX_FOLDER_NAME = 100  # characters, without the hash


def write(comparison: Comparison) -> list[Path]:
    """Write the report and return the written files, without those of TensorBoard.

    Everything is drawn before the first file is written, and each is replaced as a whole, so a failure leaves
    the old files.
    """
    by_setting = styles(comparison)
    curves, drawn = [], []
    for group in track(comparison.groups, "drawing", len(comparison.groups)):
        curves.append(group_curves(group, comparison))
        drawn.append(pictures(group, comparison, curves[-1], by_setting))
    html, markdown = comparison.folder / HTML, comparison.folder / MARKDOWN
    pages = {html: html_report(comparison, drawn, by_setting), markdown: markdown_report(comparison, drawn)}
    plots = save_all([one for group in drawn for one in group], comparison.folder / PLOTS)
    for path, text in pages.items():
        write_whole(path, text)
    write_summary_run(comparison, drawn, curves)
    return [*pages, *plots]


def save_all(drawn: list[Picture], folder: Path) -> list[Path]:
    """Write the drawn pictures, then remove those of an earlier report that were not replaced."""
    written = [path for one in drawn if one.svg for path in save(one, folder)]
    for part in PARTS:
        for path in {*folder.glob(f"*--*-{part}.svg"), *folder.glob(f"*--*-{part}.png")}.difference(written):
            path.unlink(missing_ok=True)
    return written


def write_summary_run(
    comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Bands]
) -> None:
    """drawn, curves: the pictures and curves of each group."""
    from torch.utils.tensorboard import SummaryWriter  # torch, which nothing else of a comparison needs

    with whole_folder(comparison.folder / SUMMARY) as folder:
        with SummaryWriter(str(folder)) as writer:
            for tag, text in _texts(comparison):
                writer.add_text(tag, text)
            for tag, png in _images(comparison, drawn):
                writer.add_image(tag, np.asarray(Image.open(io.BytesIO(png))), dataformats="HWC")
            layout = {
                title(group): _charts(file_start(group), bands)
                for group, bands in zip(comparison.groups, curves, strict=True)
            }
            writer.add_custom_scalars({f"Seeds of {name}": charts for name, charts in layout.items()})
        for setting, points in _points(comparison, curves).items():
            with SummaryWriter(str(folder / folder_name(setting))) as writer:
                for tag, step, value in points:
                    writer.add_scalar(tag, value, step)


def folder_name(setting: str) -> str:
    """The unique folder of a setting's run below `_report`: the setting without characters that paths cannot
    have.
    """
    name = re.sub(r"[^\w.=+ -]+", "_", setting, flags=re.ASCII)[:MAX_FOLDER_NAME]
    return name if name == setting else f"{name}-{hashlib.sha256(setting.encode()).hexdigest()[:8]}"


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
            if one.png:
                yield f"{start}/{one.name.removeprefix(start + '-')}", one.png


def _points(comparison: Comparison, curves: Sequence[Bands]) -> dict[str, list[tuple[str, int, float]]]:
    """Setting -> (tag, step, value) of its bands."""
    points: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    for group, bands in zip(comparison.groups, curves, strict=True):
        for tag, settings in bands.items():
            for setting, band in settings.items():
                for part in ("mean", "low", "high"):
                    values, start = getattr(band, part), f"{file_start(group)}/{tag}/{part}"
                    points[setting] += [
                        (start, int(band.steps[i]), float(values[i])) for i in spaced(len(band.steps), POINTS)
                    ]
    return points


def _charts(start: str, bands: Bands) -> dict[str, list]:
    """One chart per tag, in which each setting's run draws a line with its band as margin."""
    drawn = {tag: name for tag, name in (LOSSES | NUMERICS).items() if bands.get(tag)}
    return {
        name: ["Margin", [f"{start}/{tag}/{part}" for part in ("mean", "low", "high")]]
        for tag, name in drawn.items()
    }
