"""A picture of the report: its figure and what it shows in words, or why there is none."""

import io
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from mpx.render.plots.looks import INK
from mpx.render.plots.style import DPI, GRID, MUTED, PAPER, fit, house_style, pin_labels
from mpx.whole_file import write_whole


class NothingToDraw(Exception):
    """Its text says what is missing, as the end of a sentence."""


@dataclass(frozen=True)
class Picture:
    """svg, png: None where there is nothing to draw; `reason` then says why, as the end of a sentence."""

    name: str  # of its files, without ending
    title: str  # Speed-up of training
    of: str  # resnet18 on cifar10
    caption: str
    svg: str | None = None
    png: bytes | None = None
    reason: str | None = None


def picture(name: str, title: str, of: str, caption: str, draw: Callable[[], Figure]) -> Picture:
    """Draw, put the title on top and render. draw: raises NothingToDraw where data is missing."""
    with house_style(name):
        try:
            figure = draw()
        except NothingToDraw as nothing:
            return Picture(name, title, of, caption, reason=str(nothing))
        pin_labels(figure)
        lines = textwrap.wrap(f"{title}: {of}", 78)
        figure.set_figheight(figure.get_figheight() + 0.1 + 0.16 * len(lines))
        top = 1 - 0.06 / figure.get_figheight()
        figure.suptitle("\n".join(lines), x=0.012, y=top, ha="left", va="top", fontsize=10.5, fontweight="bold")
        return Picture(name, title, of, caption, *_rendered(figure))


def _rendered(figure: Figure) -> tuple[str, bytes]:
    """SVG text and PNG bytes, without dates or versions, so that the same data gives the same files."""
    svg, png = io.StringIO(), io.BytesIO()
    canvas = FigureCanvasAgg(figure)  # before the layout, which then measures text with the renderer that draws it
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # for a name in a script that matplotlib's font lacks but a browser has
        fit(figure)
        canvas.draw()
        # Without the alpha channel, which is opaque: level 3 makes files no larger than level 4 with it, in half the time.
        Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(png, "png", dpi=(DPI, DPI), compress_level=3)
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})  # last: it sets the figure to 72 dots per inch
    return svg.getvalue(), png.getvalue()


def save(found: Picture, folder: Path) -> list[Path]:
    """Write `<name>.svg` and `<name>.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"{found.name}.svg": found.svg, folder / f"{found.name}.png": found.png}
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def inline(found: Picture) -> str:
    """The SVG as an element of a page, in the page's own colours, which follow the screen's: --ink, --muted, --grid, --paper."""
    svg = found.svg[found.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    for colour, variable in ((INK, "--ink"), (MUTED, "--muted"), (GRID, "--grid"), (PAPER, "--paper")):
        svg = svg.replace(f": {colour}", f": var({variable})")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    start = f'<svg role="img" aria-label="{escape(found.title)}: {escape(found.of)}" viewBox="0 0 {width} {height}"'
    return re.sub(r"<svg [^>]*>", start + ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">', svg, count=1)
