"""Copy bandwidth over the size of the tensor."""

from mpx.bench.show.tables import About, Row, device_name, flat, say, say_alone, say_peaks, say_table, say_why
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.rates import Curve, rates_figure


def show(about: About, rows: list[Row]) -> None:
    columns = (
        ("MiB", "mib", ",.4g"),
        ("GB/s", "gb_per_s", "rate"),
        ("vendor peak", "peak_gb_per_s", "rate"),
        ("of peak", "share_of_peak", ".0%"),
    )
    say_table(flat(f"Copies within the memory of {device_name(about)}", rows, columns))
    say("Every byte counts twice, once read and once written; 1 GB = 10⁹ bytes. Small tensors stay in caches.")
    say_why(rows, ("size",))
    say_peaks(about)
    say_alone(about)


def plot(about: About, rows: list[Row]) -> Picture:
    def draw():
        points = [(row["mib"], row["gb_per_s"]) for row in rows if row["gb_per_s"]]
        return rates_figure({"": [Curve("copy, read and written bytes", points)]}, "tensor, MiB", "GB/s")

    return picture("copy", "Copy bandwidth", device_name(about), "Every byte counts twice.", draw)
