"""A picture of the report: the rendered figure with title and caption, or the reason why there is none."""

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from mpx.render.plots.colours import INK
from mpx.render.plots.style import DPI, GRID, MUTED, PAPER, fit, house_style
from mpx.whole_file import own_folder, write_whole

MAX_LINES = 6  # of a title


class NothingToDraw(Exception):
    """The message says what is missing, as the end of a sentence."""


@dataclass(frozen=True)
class Picture:
    """svg, png: None if there is nothing to draw; `reason` then says why, as the end of a sentence."""

    name: str  # of its files, without suffix
    title: str  # Speed-up of training
    of: str  # resnet18 on cifar10
    caption: str
    svg: str | None = None
    png: bytes | None = None
    reason: str | None = None


def picture(name: str, title: str, of: str, caption: str, draw: Callable[[], Figure]) -> Picture:
    """Draw, add the title and render. draw: raises NothingToDraw if data is missing."""
    with house_style(name):
        try:
            figure = draw()
        except NothingToDraw as nothing:
            return Picture(name, title, of, caption, reason=str(nothing))
        lines = textwrap.wrap(f"{title}: {of}", 78, max_lines=MAX_LINES, placeholder=" …")
        figure.set_figheight(figure.get_figheight() + 0.1 + 0.16 * len(lines))
        top = 1 - 0.06 / figure.get_figheight()
        figure.suptitle("\n".join(lines), x=0.012, y=top, ha="left", va="top", fontsize=10.5, fontweight="bold")
        return Picture(name, title, of, caption, *_rendered(figure))


def _rendered(figure: Figure) -> tuple[str, bytes]:
    """SVG text and PNG bytes, without dates or versions, so that equal data gives equal files."""
    svg, png = io.StringIO(), io.BytesIO()
    canvas = FigureCanvasAgg(figure)  # created before the layout, so that text is measured by the renderer that draws it
    fit(figure)
    canvas.draw()
    # Dropping the opaque alpha channel allows the faster compression level 3 at the same file size.
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(png, "png", dpi=(DPI, DPI), compress_level=3)
    # Last, because it sets the figure to 72 dots per inch.
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})
    return svg.getvalue(), png.getvalue()


def save(found: Picture, folder: Path) -> list[Path]:
    """Write `<name>.svg` and `<name>.png`."""
    own_folder(folder)
    files = {folder / f"{found.name}.svg": found.svg, folder / f"{found.name}.png": found.png}
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def inline(found: Picture) -> str:
    """The SVG as an HTML element in the page's colours (--ink, --muted, --grid, --paper), which follow light and dark mode."""
    svg = found.svg[found.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    for colour, variable in ((INK, "--ink"), (MUTED, "--muted"), (GRID, "--grid"), (PAPER, "--paper")):
        svg = svg.replace(f": {colour}", f": var({variable})")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    start = f'<svg role="img" aria-label="{escape(found.title)}: {escape(found.of)}" viewBox="0 0 {width} {height}"'
    start += ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"<svg [^>]*>", lambda _: start, svg, count=1)  # as a template, a title with a backslash would be an error
