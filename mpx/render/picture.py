"""Pictures: common size, fonts, axes and legends, legible in print and on light and dark screens; drawn, with
title and caption. Each setting has the same colour, marker and line style in every plot and in the page.
"""

import io
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import TightLayoutEngine
from PIL import Image

from mpx.compare.comparison import Comparison
from mpx.compare.groups import natural
from mpx.runs.result import Metric
from mpx.system.whole_file import own_folder, write_whole

# in dark mode the page replaces these
INK, MUTED, GRID, PAPER = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"
# Colour-blind readers can distinguish these: Okabe and Ito, Color Universal Design, without their yellow,
# which is too light for paper; the last is the wine red of Paul Tol's muted scheme. So four formats, dense
# and 2:4, have a colour each.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
WIDTH = 7.2  # inches
DPI = 160
PAD = 0.1  # inches around a figure's content, since browsers render text slightly wider
LINE = 95  # characters of a legend across the page's width
MAX_CURVES = 8  # more lines are not distinguishable
MAX_LINES = 6  # of a title


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    line: Any  # of matplotlib's LineStyleType


Styles = Mapping[str, Style]  # by setting


def styles(comparison: Comparison) -> dict[str, Style]:
    """Setting -> its style. Controls have the colour INK. The others get colours by how many groups have
    them, then by name, so that a new seed does not change them.
    """
    controls = list(dict.fromkeys(group.control for group in comparison.groups if group.control))
    count = Counter(row.setting for group in comparison.groups for row in group.rows)
    others = sorted(set(count) - set(controls), key=lambda name: (-count[name], " " in name, natural(name)))
    chosen = {
        setting: Style(INK, MARKERS[i % len(MARKERS)], LINES[i % len(LINES)])
        for i, setting in enumerate(controls)
    }
    for i, setting in enumerate(others):
        # shifts the markers, so that seven colours and seven markers give 49 different pairs
        again = i // len(COLOURS)
        chosen[setting] = Style(
            COLOURS[i % len(COLOURS)], MARKERS[(i + 1 + again) % len(MARKERS)], LINES[again % len(LINES)]
        )
    return chosen


@dataclass(frozen=True)
class Picture:
    name: str  # of its files, without suffix
    title: str  # Speed-up of training
    of: str  # resnet18 on cifar10
    caption: str
    svg: str
    png: bytes


def picture(
    name: str, title: str, of: str, caption: str, draw: Callable[[], Figure | None]
) -> Picture | None:
    """Draw, add the title and render. None if `draw` finds nothing to show."""
    with house_style(name):
        if (figure := draw()) is None:
            return None
        lines = textwrap.wrap(f"{title}: {of}", 78, max_lines=MAX_LINES, placeholder=" …")
        figure.set_figheight(figure.get_figheight() + 0.1 + 0.16 * len(lines))
        top = 1 - 0.06 / figure.get_figheight()
        figure.suptitle(
            "\n".join(lines), x=0.012, y=top, ha="left", va="top", fontsize=10.5, fontweight="bold"
        )
        return Picture(name, title, of, caption, *_rendered(figure))


def _rendered(figure: Figure) -> tuple[str, bytes]:
    """SVG text and PNG bytes, without dates or versions, so that equal data gives equal files."""
    svg, png = io.StringIO(), io.BytesIO()
    # created before the layout, so that text is measured by the renderer that draws it
    canvas = FigureCanvasAgg(figure)
    fit(figure)
    canvas.draw()
    # Dropping the opaque alpha channel allows the faster compression level 3 at the same file size.
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(
        png, "png", dpi=(DPI, DPI), compress_level=3
    )
    # Last, because it sets the figure to 72 dots per inch.
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})
    return svg.getvalue(), png.getvalue()


def save(drawn: Picture, folder: Path) -> list[Path]:
    """Write `<name>.svg` and `<name>.png`."""
    own_folder(folder)
    svg, png = folder / f"{drawn.name}.svg", folder / f"{drawn.name}.png"
    write_whole(svg, drawn.svg)
    write_whole(png, drawn.png)
    return [svg, png]


def inline(drawn: Picture) -> str:
    """The SVG as an HTML element in the page's colours (--ink, --muted, --grid, --paper), which follow light
    and dark mode.
    """
    svg = drawn.svg[drawn.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    for colour, variable in ((INK, "--ink"), (MUTED, "--muted"), (GRID, "--grid"), (PAPER, "--paper")):
        svg = svg.replace(f": {colour}", f": var({variable})")
    what = f'role="img" aria-label="{escape(drawn.title)}: {escape(drawn.of)}"'
    xml = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    # A function, since a title with a backslash would be an error in a template.
    return re.sub(
        r'<svg [^>]*(viewBox="[^"]*")[^>]*>', lambda tag: f"<svg {what} {tag[1]} {xml}>", svg, count=1
    )


@contextmanager
def house_style(salt: str) -> Iterator[None]:
    """salt: makes the ids of one SVG unique, since a page contains several."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a browser has other fonts
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.labelsize": 9,
                "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 8.5,
                "legend.frameon": False,
                "text.color": INK, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
                "xtick.labelcolor": INK,
                "ytick.labelcolor": INK, "axes.edgecolor": MUTED, "axes.facecolor": "none",
                "figure.facecolor": PAPER,
                "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID,
                "grid.linewidth": 0.6,
                "axes.axisbelow": True, "lines.linewidth": 1.6, "text.parse_math": False,
                "svg.fonttype": "none", "svg.hashsalt": salt,
                "text.hinting": "no_hinting",  # invisible at this resolution, and faster
            }
        )  # fmt: skip
        yield


def canvas(height: float, columns: int = 1, rows: int = 1, **kwargs):
    """A figure of the page's width and `height` inches, with axes side by side."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    # close to the result of `fit`, so that `fit` measures the final ticks
    figure.subplots_adjust(left=0.1, right=0.98, wspace=0.25)
    return figure, figure.subplots(rows, columns, **kwargs)


def fit(figure: Figure) -> None:
    """Fit the axes into the space that title, legend and labels leave. Constrained layout would measure
    everything twice.
    """
    pad = PAD * 72 / matplotlib.rcParams["font.size"]
    # The stub has no None, which is the default of Figure.tight_layout; a rect would also measure twice.
    TightLayoutEngine(pad=pad, w_pad=2 * pad, rect=None).execute(figure)  # type: ignore[arg-type]
    for legend in figure.legends:
        height = legend.get_window_extent().height / figure.dpi + 0.8 * PAD
        figure.subplots_adjust(bottom=figure.subplotpars.bottom + height / figure.get_figheight())


def wrapped(name: str, width: int = 38) -> str:
    """A long name wrapped into lines, at spaces and hyphens if possible."""
    return "\n".join(textwrap.wrap(name, width, break_long_words=True))


def names_on_y(axes, names: Iterable[str], size: float = 8.5) -> None:
    """Label the rows, the first on top."""
    labels = [wrapped(name) for name in names]
    axes.set_yticks(range(len(labels)), labels, fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_ylim(len(labels) - 0.5, -0.5)


def height_for(names: Iterable[str]) -> float:
    """The height in inches of a figure with one row per name, enough for names of several lines."""
    lines = [wrapped(name).count("\n") + 1 for name in names]
    return 0.8 + len(lines) * max(0.3, 0.1 + 0.155 * max(lines))


def plain_ticks(axes, which: str) -> None:
    """Label an axis without an offset, which would overlap other text, and without rows of zeros."""
    largest = max(map(abs, getattr(axes, f"get_{which}lim")()))
    if 1e-4 <= largest < 1e9:
        axes.ticklabel_format(style="plain", useOffset=False, axis=which)
    else:
        getattr(axes, f"{which}axis").set_major_formatter(lambda value, _: f"{value:.8g}")


def metric_axis(axes, which: str, metric: Metric, largest: float) -> None:
    """Label an axis of the metric. One that should rise and has no value above 1 is a share: an accuracy."""
    plain_ticks(axes, which)
    if metric.sign > 0 and largest <= 1:
        low, high = getattr(axes, f"get_{which}lim")()
        getattr(axes, f"set_{which}lim")(low, min(high, 1.0))


def plain_log_ticks(axis) -> None:
    """Label a logarithmic axis with plain numbers."""
    axis.set_major_formatter(lambda value, _: _plain(value))
    axis.set_minor_formatter(lambda value, _: _plain(value) if f"{value:.0e}"[0] in labelled(axis) else "")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= value < 1e9 else f"{value:,.4g}"


def labelled(axis) -> str:
    """First digits of the labelled ticks between powers of ten: 2 and 5, more within a decade, none over two
    decades and more.
    """
    low, high = axis.get_view_interval()
    return "2357" if high < 10 * low else "25" if high < 100 * low else ""


def rate_ticks(axes) -> None:
    """Label the x axis with rates: 1,500 or 12.5."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def percent_axis(axes, which: str, largest: float) -> None:
    """Make an axis of shares logarithmic, in percent, with room for zero."""
    getattr(axes, f"set_{which}scale")("symlog", linthresh=1e-6)
    getattr(axes, f"set_{which}lim")(-2e-7, max(2 * largest, 1e-5))
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")


def legend_below(figure: Figure, handles: list, names: list[str], *, handlelength: float = 2.0) -> None:
    """Add a legend below the axes, in as many columns as the names allow, and enlarge the figure for it.
    handlelength: in font sizes.
    """
    labels = [wrapped(name, 42) for name in names]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(4, len(names), int(LINE / (longest + 2 * handlelength + 5))))
    each = -(-len(labels) // columns)  # entries in a column; matplotlib fills column by column
    lines = max(
        sum(label.count("\n") + 1 for label in labels[i : i + each]) for i in range(0, len(labels), each)
    )
    figure.set_figheight(figure.get_figheight() + 0.175 * lines + 0.1)
    figure.legend(
        handles, labels, loc="lower left", ncols=columns, alignment="left", handlelength=handlelength
    )
