"""2:4 masks: bytes per second by way and size, with and without the compression that follows."""

from mpx.bench.show.tables import About, Row, device_name, pivot, say, say_alone, say_table, say_why
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.rates import Curve, rates_figure

DOWN = (("format", "format"), ("way", "way"))


def show(about: About, rows: list[Row]) -> None:
    alone, compressed = ([row for row in rows if row["compressed"] is with_it] for with_it in (False, True))
    say_table(pivot(f"2:4 mask and pruned weight on {device_name(about)}, GB/s by size", _sorted(alone), DOWN, "size", "gb_per_s"))
    say_table(pivot("The same, ms by size", _sorted(alone), DOWN, "size", "ms", ".4f"))
    say_table(pivot("With compression for cuSPARSELt after it, ms by size", _sorted(compressed), DOWN, "size", "ms", ".4f"))
    say("GB/s: the weight read once, mask and pruned weight written once. Every mask is equal to float64's, bit for bit.")
    say_why([row | {"how": "compressed by" if row["compressed"] else "by"} for row in rows], ("format", "how", "way"))
    say_alone(about)


def _sorted(rows: list[Row]) -> list[Row]:
    formats = list(dict.fromkeys(row["format"] for row in rows))
    return sorted(rows, key=lambda row: formats.index(row["format"]))


def plot(about: About, rows: list[Row]) -> Picture:
    ways = list(dict.fromkeys(row["way"] for row in rows))
    panels: dict[str, dict[str, list]] = {}
    for row in rows:
        if row["gb_per_s"] and not row["compressed"]:
            panels.setdefault(row["format"], {}).setdefault(row["way"], []).append((row["size"], row["gb_per_s"]))
    curves = {fmt: [Curve(way, points, ways.index(way) + 1) for way, points in found.items()] for fmt, found in panels.items()}
    draw = lambda: rates_figure(curves, "rows and columns", "GB/s")  # noqa: E731
    return picture("triton", "2:4 masks", device_name(about), "Logarithmic on both axes.", draw)
