"""Attention: rates by kernel, format and mask."""

from mpx.bench.show.tables import About, Row, device_name, pivot, say, say_alone, say_table, say_why
from mpx.render.plots.grouped import grouped_bars
from mpx.render.plots.picture import Picture, picture

DOWN = (("direction", "direction"), ("mask", "mask"), ("format", "format"))


def show(about: About, rows: list[Row]) -> None:
    for length in dict.fromkeys(row["length"] for row in rows):
        here = [row for row in rows if row["length"] == length]
        shape = f"{here[0]['batch']}×{here[0]['heads']} heads of {here[0]['head_size']}, {length} tokens"
        say_table(pivot(f"Attention on {device_name(about)}, {shape}, TFLOP/s", here, DOWN, "kernel", "tflops_per_s"))
    say(
        "causal counts half of the operations; backward 2.5 times forward's, since fused kernels compute the scores again. "
        "padding: a mask that leaves out the last quarter of every second sequence, counted in full."
    )
    say_why(rows, ("kernel", "format", "mask"))
    say_alone(about)


def plot(about: About, rows: list[Row]) -> Picture:
    def draw():
        bars: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["tflops_per_s"] and row["length"] == rows[-1]["length"]:
                mask = "no mask" if row["mask"] == "none" else f"{row['mask']} mask"
                bars.setdefault(f"{row['direction']}, {mask}, {row['format']}", {})[row["kernel"]] = row["tflops_per_s"]
        return grouped_bars(bars, f"TFLOP/s, {rows[-1]['length']} tokens")

    return picture("attention", "Attention", device_name(about), f"Sequences of {rows[-1]['length']} tokens.", draw)
