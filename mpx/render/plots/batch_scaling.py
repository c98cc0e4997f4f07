"""Speed-up over batch size: one panel per setting, one line per model."""

from mpx.compare.batch_scaling import growths, shared
from mpx.compare.comparison import Comparison
from mpx.compare.run import text_of
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.rates import Curve, rates_figure

NAME = "all--speedup-batches"


def growth_picture(comparison: Comparison) -> Picture | None:
    """The picture; None if no setting ran at several batch sizes."""
    if not (lines := growths(comparison)):
        return None
    colours = {of: i for i, of in enumerate(dict.fromkeys(line.of for line in lines))}
    panels: dict[str, list[Curve]] = {line.setting: [] for line in lines}
    for line in lines:
        points = [(size, found.ratio) for size, found in line.speedups.items()]
        panels[line.setting].append(Curve(line.of, points, colour=colours[line.of]))
    caption = "Throughput over that of the control at the same batch size; both axes logarithmic."
    if changes := shared(comparison):
        caption += f" All with {text_of(changes)}."
    return picture(NAME, "Speed-up by batch size", "every model", caption, lambda: rates_figure(panels, "samples per batch", "speed-up"))
