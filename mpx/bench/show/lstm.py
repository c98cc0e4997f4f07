"""LSTMs: rates by format and width."""

from mpx.bench.show.tables import About, Row, device_name, pivot, say, say_alone, say_table, say_why
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.rates import Curve, rates_figure

DOWN = (("direction", "direction"), ("format", "format"))


def show(about: About, rows: list[Row]) -> None:
    graph = ", in a CUDA graph" if rows[0]["how"] == "graph" else ""
    title = f"A two-layer LSTM over {rows[0]['batch']}×{rows[0]['tokens']} tokens on {device_name(about)}{graph}"
    say_table(pivot(f"{title}, TFLOP/s by width", rows, DOWN, "hidden", "tflops_per_s"))
    say_table(pivot("ms by width", rows, DOWN, "hidden", "ms", ".3f"))
    say("backward counts twice the operations of forward. Outputs and all gradients are checked against float64.")
    say_why(rows, ("format", "hidden"))
    say_alone(about)


def plot(about: About, rows: list[Row]) -> Picture:
    formats = list(dict.fromkeys(row["format"] for row in rows))
    curves: dict[str, dict[str, list]] = {}
    for row in rows:
        if row["tflops_per_s"]:
            curves.setdefault(row["direction"], {}).setdefault(row["format"], []).append((row["hidden"], row["tflops_per_s"]))
    panels = {title: [Curve(fmt, points, formats.index(fmt)) for fmt, points in found.items()] for title, found in curves.items()}
    return picture("lstm", "LSTM", device_name(about), "Logarithmic on both axes.", lambda: rates_figure(panels, "width", "TFLOP/s"))
