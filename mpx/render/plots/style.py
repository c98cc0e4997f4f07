"""What all figures share: size, fonts, axes and legends. They are legible in print, on light and on dark screens."""

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import TightLayoutEngine
from matplotlib.transforms import ScaledTranslation

from mpx.render.plots.looks import INK

MUTED, GRID, PAPER = "#57606a", "#d0d7de", "#ffffff"  # a page on a dark screen replaces these and INK by its own
WIDTH = 7.2  # inches
DPI = 160
PAD = 0.1  # inches around a figure's content; text in a browser is a little wider than here
LABEL = 19.5  # points from the x axis to the top of its label
FONTS = {  # the first is matplotlib's own; short lists, since matplotlib hashes all of them whenever it measures a text
    "font.sans-serif": ["DejaVu Sans", "Bitstream Vera Sans", "Lucida Grande", "Verdana", "Arial", "Helvetica"],
    **{f"font.{unused}": [] for unused in ("serif", "monospace", "cursive", "fantasy")},
}
MOST_CURVES = 8  # lines that can still be told apart


@contextmanager
def house_style(salt: str) -> Iterator[None]:
    """salt: makes the ids in one SVG differ from those in another, since a page holds several."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.labelsize": 9,
                "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 8.5, "legend.frameon": False,
                "text.color": INK, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
                "ytick.labelcolor": INK, "axes.edgecolor": MUTED, "axes.facecolor": "none", "figure.facecolor": PAPER,
                "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
                "axes.axisbelow": True, "lines.linewidth": 1.6, "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": salt,
                "text.hinting": "no_hinting",  # at this resolution it makes no difference, and matplotlib draws each letter anew
                **FONTS,
            }
        )  # fmt: skip
        yield


def canvas(height: float, columns: int = 1, **kwargs):
    """A figure of the page's width and `height` inches, and its axes side by side."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    figure.subplots_adjust(left=0.1, right=0.98, wspace=0.25)  # about as `fit` will leave it, which so measures the ticks that are drawn
    return figure, figure.subplots(1, columns, **kwargs)


def fit(figure: Figure) -> None:
    """Give the axes the room that title, legend and labels leave. Constrained layout would measure everything twice."""
    pad = PAD * 72 / matplotlib.rcParams["font.size"]
    TightLayoutEngine(pad=pad, w_pad=2 * pad, rect=None).execute(figure)  # with a rect it measures twice too
    for legend in figure.legends:
        height = legend.get_window_extent().height / figure.dpi + 0.8 * PAD
        figure.subplots_adjust(bottom=figure.subplotpars.bottom + height / figure.get_figheight())


def pin_labels(figure: Figure) -> None:
    """Put the axes' labels where they would be anyway.

    Otherwise matplotlib searches all tick labels for the place, in each drawing and layout, even if there is no label. Tick labels along x
    have one line of text. The place beside those along y depends on their width.
    """
    for axes in figure.axes:
        below = ScaledTranslation(0, -LABEL / 72, figure.dpi_scale_trans)
        axes.xaxis.set_label_coords(0.5, 0, transform=axes.transAxes + below)
        if not axes.get_ylabel():
            axes.yaxis.set_label_coords(0, 0.5)


def wrapped(name: str, width: int = 38) -> str:
    """A long name in lines, broken at spaces and hyphens where there are any."""
    return "\n".join(textwrap.wrap(name, width, break_long_words=True))


def names_on_y(axes, names: Iterable[str], size: float = 8.5) -> None:
    """One name per row, the first on top. They are texts, since matplotlib makes of a tick also two marks, a line and a second text."""
    labels = [wrapped(name) for name in names]
    axes.set_yticks([])
    place = axes.get_yaxis_transform() + ScaledTranslation(-3.5 / 72, 0, axes.figure.dpi_scale_trans)
    for y, label in enumerate(labels):
        axes.text(0, y, label, transform=place, ha="right", va="center_baseline", fontsize=size)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def height_for(names: Iterable[str]) -> float:
    """The height in inches of a figure with one row per name, in which names of several lines do not touch."""
    lines = [wrapped(name).count("\n") + 1 for name in names]
    return 0.8 + len(lines) * max(0.3, 0.1 + 0.155 * max(lines))


def percent_axis(axes, which: str, largest: float) -> None:
    """A logarithmic axis of shares, in percent, on which zero has its place too."""
    getattr(axes, f"set_{which}scale")("symlog", linthresh=1e-6)
    getattr(axes, f"set_{which}lim")(-2e-7, max(2 * largest, 1e-5))
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")


def legend_below(figure: Figure, handles: list, names: list[str], *, handlelength: float = 2.0) -> None:
    """A legend under the axes, in as many columns as the names allow; the figure grows by what it needs. handlelength: in font sizes."""
    labels = [wrapped(name, 46) for name in names]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(4, len(names), 110 // (longest + 8)))
    each = -(-len(labels) // columns)  # entries in a column; matplotlib fills column by column
    lines = max(sum(label.count("\n") + 1 for label in labels[i : i + each]) for i in range(0, len(labels), each))
    figure.set_figheight(figure.get_figheight() + 0.175 * lines + 0.1)
    figure.legend(handles, labels, loc="lower left", ncols=columns, alignment="left", handlelength=handlelength)
